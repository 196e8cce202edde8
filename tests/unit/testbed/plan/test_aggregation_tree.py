"""Which switches add what, on every shape of network."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.aggregation_tree import Branch, tree_of
from testbed.plan.placement import place

RACKS = {"workers": 4, "topology": {"kind": "leaf_spine", "leaves": 2, "spines": 2}}
PODS = {"workers": 8, "topology": {"kind": "fat_tree", "k": 4}}


def tree(at: str | None, **keys: Any) -> Branch:
    experiment = validate({"name": "x", **keys})
    return tree_of(place(experiment), experiment.workers, at)


def shape(branch: Branch | str) -> Any:
    if isinstance(branch, str):
        return branch
    return branch.switch, *(shape(child) for child in branch.children)


@pytest.mark.parametrize(
    ("keys", "at", "expected"),
    [
        ({"workers": 2}, None, ("s0", "w0", "w1")),
        ({"workers": 2}, "leaf", ("s0", "w0", "w1")),
        (RACKS, None, ("s2", "w0", "w1", "w2", "w3")),
        (RACKS, "s3", ("s3", "w0", "w1", "w2", "w3")),
        (RACKS, "spine", ("s2", "w0", "w1", "w2", "w3")),
        (RACKS, "leaf", ("s0", "w0", "w1", ("s1", "w2", "w3"))),
        (RACKS, "tree", ("s2", ("s0", "w0", "w1"), ("s1", "w2", "w3"))),
        (RACKS | {"workers": 3}, "tree", ("s2", ("s0", "w0", "w1"), "w2")),
        (
            PODS,
            "tree",
            (
                "s16",
                ("s8", ("s0", "w0", "w1"), ("s1", "w2", "w3")),
                ("s10", ("s2", "w4", "w5"), ("s3", "w6", "w7")),
            ),
        ),
        (
            PODS | {"workers": 6},  # the second pod has one edge switch with workers: nothing to add above it
            "tree",
            ("s16", ("s8", ("s0", "w0", "w1"), ("s1", "w2", "w3")), ("s2", "w4", "w5")),
        ),
        (PODS | {"workers": 2}, "tree", ("s0", "w0", "w1")),
        (
            {"workers": 6, "topology": "ring", "workers_per_host": 2},
            "leaf",
            ("s0", "w0", "w1", ("s1", "w2", "w3"), ("s2", "w4", "w5")),
        ),
    ],
)
def test_each_adds_what_is_below_it_where_there_is_more_than_one(keys: Any, at: str | None, expected: Any) -> None:
    assert shape(tree(at, **keys)) == expected


@pytest.mark.parametrize("at", ["spine", "tree"])
def test_where_every_switch_has_workers_there_is_none_above(at: str) -> None:
    with pytest.raises(SpecError, match=f"^collective.at: {at} needs a switch without workers.* allowed: leaf"):
        tree(at, workers=2)


def test_an_unknown_place_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        SpecError, match=r"^collective.at: 's9' is no switch; there are s0, s1, s2, s3, and leaf, spine"
    ):
        tree("s9", **RACKS)
