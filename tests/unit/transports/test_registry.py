"""An axis lists its files, reads its values from a spec and writes them back."""

import subprocess
import sys
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ValidationError

from testbed.experiment.fusion.base import FUSIONS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES, Collective
from transports.compression.base import COMPRESSORS
from transports.errors import OptionError
from transports.registry import Options, Registry


def test_a_name_and_a_mapping_mean_the_same() -> None:
    assert COLLECTIVES.parse("ring") == COLLECTIVES.parse({"kind": "ring"})


def test_a_value_is_its_own_spec() -> None:
    ring = COLLECTIVES.parse("ring")
    assert COLLECTIVES.parse(ring) is ring


@pytest.mark.parametrize("axis", [COLLECTIVES, CHANNELS])
def test_every_value_reads_back_what_it_writes(axis: Registry[Any]) -> None:
    for kind in axis.kinds():
        value = axis.parse(kind)
        assert value.kind == kind
        assert axis.parse(axis.dump(value)) == value


def test_options_are_read_with_their_units() -> None:
    assert COLLECTIVES.dump(COLLECTIVES.parse({"kind": "ring", "segment_bytes": "64KiB"})) == {
        "kind": "ring",
        "segment_bytes": "64KiB",
    }


def test_an_unknown_kind_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(OptionError, match=r"'rign' is not a collective; allowed: .*ring"):
        COLLECTIVES.parse("rign")


@pytest.mark.parametrize("value", [None, 7, {}, {"kind": 3}, ["ring"]])
def test_what_is_neither_name_nor_mapping_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match="a name or a mapping with a `kind`"):
        COLLECTIVES.parse(value)


@pytest.mark.parametrize(("kind", "option"), [("dgc", "clip_norm"), ("threshold", "threshold"), ("terngrad", "clip")])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_without_an_upper_bound_is_finite(kind: str, option: str, value: float) -> None:
    with pytest.raises(ValidationError, match=f"{option}\n  Input should be a finite number"):
        COMPRESSORS.parse({"kind": kind, option: value})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="segment_size"):
        COLLECTIVES.parse({"kind": "ring", "segment_size": "1KiB"})


@pytest.mark.parametrize("size", ["0B", 0, "-1KiB", "12"])
def test_an_option_out_of_range_is_refused(size: object) -> None:
    with pytest.raises(ValidationError, match="segment_bytes"):
        COLLECTIVES.parse({"kind": "ring", "segment_bytes": size})


def test_two_values_in_one_file_are_refused() -> None:
    axis: Registry[Options] = Registry("thing", "transports.collectives")
    axis.register(Options)
    with pytest.raises(AssertionError, match="two thing values in one file"):
        axis.register(Options)


def test_the_schema_of_a_value_with_models_inside_stands_alone() -> None:
    class Part(BaseModel):
        size: int

    class Whole(Options):
        parts: list[Part]

    axis: Registry[Options] = Registry("thing", "transports.baselines")
    axis.register(Whole)
    whole = next(each for each in axis.json_schema()["anyOf"] if each.get("title") == "Whole")
    assert whole["properties"]["parts"]["items"]["properties"]["size"] == {"title": "Size", "type": "integer"}
    assert "$" not in str(whole)


def test_an_axis_is_a_field_of_a_model() -> None:
    class Spec(BaseModel):
        collective: Annotated[Collective, *COLLECTIVES.field()]
        other: Annotated[Collective | None, *COLLECTIVES.optional_field()] = None

    spec = Spec.model_validate({"collective": "ring"})
    assert spec.collective == COLLECTIVES.parse("ring")
    assert Spec.model_validate(spec.model_dump()) == spec
    variants = Spec.model_json_schema()["properties"]["collective"]["anyOf"]
    assert "ring" in variants[0]["enum"]


def test_listing_an_axis_does_not_import_torch() -> None:
    code = """
import sys
from testbed.experiment.fusion.base import FUSIONS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
assert CHANNELS.kinds() and COLLECTIVES.kinds()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_a_kind_may_be_left_out_options_of_others_are_distinguished_from_unknown_ones() -> None:
    assert FUSIONS.parse({}) == FUSIONS.parse("size")
    assert FUSIONS.parse({"kind": "layers", "bytes": None, "cycle": None}) == FUSIONS.parse("layers")
    with pytest.raises(OptionError, match="`size` has no `cycle`; leave it out, or write `kind: time`"):
        FUSIONS.parse({"cycle": "5ms"})
    with pytest.raises(ValidationError):
        FUSIONS.parse({"cycles": None})
    with pytest.raises(ValidationError):
        COLLECTIVES.parse({"kind": "ring", "servers": None})


def test_a_preset_stands_for_a_kind_and_its_options_and_is_listed() -> None:
    assert FUSIONS.parse("horovod_1ms") == FUSIONS.parse({"kind": "time", "bytes": "128MiB", "cycle": "1ms"})
    assert "horovod_1ms" in FUSIONS.json_schema()["anyOf"][0]["enum"]
    with pytest.raises(OptionError, match="'horovod_2ms' is not a fusion; allowed: horovod_1ms, horovod_5ms, layers"):
        FUSIONS.parse("horovod_2ms")


def test_the_schema_asks_for_a_kind_where_a_spec_must_name_one() -> None:
    required = {
        variant["properties"]["kind"]["const"]: variant["required"]
        for variant in FUSIONS.json_schema()["anyOf"]
        if "properties" in variant
    }
    assert required["size"] == []
    assert required["time"] == ["kind"]
