"""A spec from Python: a file, a name, data, an experiment; and what is changed in it."""

from pathlib import Path

import pytest

from testbed.api.specs import Spec, experiment_of, sweep_of_spec
from testbed.errors import SpecError
from testbed.experiment.experiment import load

QUICKSTART = Path("experiments/quickstart.yaml")


@pytest.mark.parametrize("spec", [QUICKSTART, str(QUICKSTART), "quickstart", load(QUICKSTART), load(QUICKSTART).dump()])
def test_each_names_the_same_experiment(spec: Spec) -> None:
    assert experiment_of(spec) == load(QUICKSTART)
    changed = load(QUICKSTART, ["link.rate=1gbit", "collective=tree"])
    assert experiment_of(spec, {"link.rate": "1gbit", "collective": "tree"}) == changed
    assert experiment_of(spec, ["link.rate=1gbit", "collective=tree"]) == changed


def test_what_the_caller_has_is_left_as_it_was() -> None:
    data = {"name": "mine", "link": {"rate": "1gbit"}}
    value = {"kind": "top_k", "ratio": "1%"}
    changed = experiment_of(data, {"link.rate": "2gbit", "compression": value, "compression.ratio": "2%"})
    assert changed.link.rate_bps == 2e9
    assert data == {"name": "mine", "link": {"rate": "1gbit"}}
    assert value == {"kind": "top_k", "ratio": "1%"}


def test_a_sweep_may_be_all_of_python() -> None:
    swept = sweep_of_spec({"name": "mine"}, {"sweep.link.rate": ["100mbit", "1gbit"], "repeat": 2})
    assert [point.experiment.link.rate_bps for point in swept.points] == [1e8, 1e9]
    assert swept.repeat == 2
    assert len(sweep_of_spec("link_speed").points) == 5


@pytest.mark.parametrize(
    ("spec", "overrides", "words"),
    [
        ({"name": "x", "wrokers": 3}, (), r"^spec: wrokers: unknown key"),
        ({"name": "x"}, {"wrokers": 3}, "wrokers: unknown key"),
        ({"name": "x"}, "workers=2", "a mapping or a list"),
        ({"name": "x"}, {"link..rate": "1gbit"}, "is no path of a setting"),
        ({"name": "x"}, ["workers"], "write path=value"),
        (7, (), "this is a int"),
        ("nowhere.yaml", (), "No such file"),
    ],
)
def test_what_is_wrong_is_named(spec: Spec, overrides: list[str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        experiment_of(spec, overrides)


def test_a_sweep_of_one_run_is_refused() -> None:
    with pytest.raises(SpecError, match="nothing varies"):
        sweep_of_spec("quickstart")
