"""`where` leaves what fits, and names what never could."""

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.sweep import MAX_COMBINATIONS, MAX_POINTS, expand
from testbed.experiment.where import is_run, parse_where

AXES: dict[str, list[Any]] = {
    "link.rate": ["100mbit", "1gbit"],
    "collective": ["ring", {"kind": "tree", "segment_bytes": "1MiB"}],
    "stack": [None, "gloo"],
}
POINTS = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


@pytest.mark.parametrize(
    ("where", "num_kept"),
    [
        ({}, 8),
        ({"link.rate": "1gbit"}, 4),
        ({"link.rate": ["1gbit", "100mbit"]}, 8),
        ({"collective": "tree", "stack": None}, 2),
        ([{"collective": "ring"}, {"link.rate": "1gbit", "stack": "gloo"}], 5),
        ([{"stack": [None, "gloo"]}], 8),
    ],
)
def test_what_fits_one_of_the_conditions_in_every_path_is_kept(where: object, num_kept: int) -> None:
    conditions = parse_where(where, AXES)
    assert sum(is_run(point, conditions) for point in POINTS) == num_kept


LISTS: list[list[str]] = [[], ["ring/tcp"], ["ring/tcp", "gloo"]]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ([], [[]]),
        (["ring/tcp"], [["ring/tcp"]]),
        (["ring/tcp", "gloo"], [["ring/tcp", "gloo"]]),
        ([[], ["ring/tcp"]], [[], ["ring/tcp"]]),
    ],
)
def test_an_axis_may_have_lists_for_values(wanted: list[object], kept: list[list[str]]) -> None:
    path = "workload.stacks"
    conditions = parse_where({path: wanted}, {path: LISTS})
    assert [each for each in LISTS if is_run({path: each}, conditions)] == kept
    with pytest.raises(
        SpecError, match=r"where\.workload\.stacks: 'gloo' is none of the values .* \['ring/tcp', 'gloo'\]"
    ):
        parse_where({path: "gloo"}, {path: LISTS})


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (None, "where: a mapping from paths that vary to values"),
        ([], "where: a mapping from paths"),
        ("link.rate == 1gbit", "where: a mapping from paths"),
        ([{"link.rate": "1gbit"}, 3], "where: a mapping from paths"),
        ([{}], "where.0: it names no path"),
        ({"link.delay": "1ms"}, "where.link.delay: it does not vary; allowed: link.rate, collective, stack"),
        ({1: 2}, "where.1: it does not vary"),
        (
            {"link.rate": "10gbit"},
            "where.link.rate: '10gbit' is none of the values that `sweep` lists for it; allowed: 100",
        ),
        ([{"stack": None}, {"collective": ["ring", "hd"]}], "where.1.collective: 'hd' is none of the values"),
        ({"link.rate": []}, "where.link.rate: a value, or a list of at least one"),
    ],
)
def test_what_could_never_fit_is_named(where: object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_where(where, AXES)
    assert words in str(caught.value)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*AXES, "x"]), inner),
    )
)
def test_anything_is_a_condition_or_an_error(where: object) -> None:
    with contextlib.suppress(SpecError):
        conditions = parse_where(where, AXES)
        assert all(len(each) > 1 or any(is_run(point, [each]) for point in POINTS) for each in conditions)


def spec(**keys: Any) -> dict[str, Any]:
    return {"name": "x", "sweep": {"collective": ["ring", "tree"], "workers": [1, 2, 3]}, **keys}


def test_a_combination_that_could_not_be_run_may_be_left_out() -> None:
    with pytest.raises(SpecError, match="nobody to exchange gradients with"):
        expand(spec())
    sweep = expand(spec(where=[{"workers": 2}, {"collective": "tree", "workers": 3}]))
    assert [point.text for point in sweep.points] == [
        "collective=ring workers=2",
        "collective=tree workers=2",
        "collective=tree workers=3",
    ]


def test_that_nothing_is_left_and_that_too_much_is_are_errors() -> None:
    apart = {"name": "x", "sweep": {"workers": [2, 3], "seed": [1, 2]}}
    one = expand({**apart, "where": {"workers": 2, "seed": 2}})
    assert len(one.points) == 1
    together = {"name": "x", "sweep": {"workers, seed": [[2, 1], [3, 2]]}, "where": {"workers": 2, "seed": 2}}
    with pytest.raises(SpecError, match="where: no combination"):
        expand(together)
    many = {"name": "x", "sweep": {"seed": list(range(MAX_POINTS + 1)), "workers": [2, 3]}}
    with pytest.raises(SpecError, match=r"where: it leaves 1,001 points; allowed: at most 1,000"):
        expand({**many, "where": {"workers": 2}})
    most = {"name": "x", "sweep": {"seed": list(range(MAX_COMBINATIONS // 2 + 1)), "workers": [2, 3]}}
    with pytest.raises(SpecError, match=r"sweep: the lists make 100,002 points; allowed: at most 100,000"):
        expand({**most, "where": {"workers": 2, "seed": 1}})
