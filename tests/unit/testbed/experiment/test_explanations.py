"""What a user reads who writes a spec in words of their own."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate


def reported(keys: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        validate({"name": "x", **keys})
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "perhaps"),
    [
        ({"link": {"bandwidth": "1gbit"}}, "link.rate"),
        ({"link": {"latency": "1ms"}}, "link.delay"),
        ({"link": {"rat": "1gbit"}}, "link.rate"),
        ({"links": {"w0-s0": {"latency": "1ms"}}}, "links.w0-s0.delay"),
        ({"wrokers": 4}, "workers"),
        ({"num_workers": 4}, "workers"),
        ({"model": "cnn"}, "workload.model"),
        ({"congestion_control": "bbr"}, "channel.congestion"),
        ({"link": {"congestion": "bbr"}}, "channel.congestion"),
        ({"workload": {"kind": "training", "workers": 4}}, "workers"),
        ({"workload": {"kind": "training", "epochs": 4}}, "workload.iterations"),
        ({"rate": "1gbit"}, "link.rate or collective.rate or channel.rate"),
    ],
)
def test_a_key_by_another_word_or_in_another_place_is_pointed_to(keys: dict[str, Any], perhaps: str) -> None:
    assert reported(keys).endswith(f"; perhaps {perhaps}")


def test_a_key_like_no_other_has_none() -> None:
    assert "perhaps" not in reported({"colour": "red"})


def test_a_list_where_one_value_stands_is_sent_to_the_sweep() -> None:
    assert "to vary it: `sweep: {compression: [...]}`" in reported({"compression": ["none", "fp16"]})
    assert "to vary it: `sweep: {link.rate: [...]}`" in reported({"link": {"rate": ["1gbit", "10gbit"]}})
    assert "to vary it" not in reported({"background": {"kind": "bulk"}})


def test_what_must_be_a_mapping_says_its_keys() -> None:
    assert reported({"link": "100mbit"}).startswith(
        "link: write a mapping, {key: value}; allowed: backend, best_effort, delay"
    )


def test_a_network_that_is_not_computed_here_has_a_way() -> None:
    message = reported({"workload": {"kind": "training", "model": "resnet50"}})
    assert message.startswith("workload.model: allowed: 'cnn'")
    assert "`workload: {kind: replay, trace: resnet50}`" in message


def test_a_name_says_of_what_it_is_made() -> None:
    assert reported({"name": "Is it enough?"}).startswith("name: write lower-case letters, digits")
