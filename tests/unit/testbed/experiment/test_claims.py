"""What is taken of a claim's points, and when it holds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.claims import Claim, Expectation, Interval, Row, matches, parse_claims


def claim(**keys: Any) -> dict[str, Any]:
    return {
        "name": "c", "of": "allreduce.time_s", "take": {"kind": "median"}, "expect": {"at_least": 1}, "why": "because",
        **keys,
    }  # fmt: skip


def taken(
    take: Mapping[str, Any], values: Sequence[float], over: Sequence[float] = (), **settings: Sequence[Any]
) -> float:
    bound = "at_most" if take["kind"] == "most" else "at_least"
    made = Claim.model_validate(claim(take=take, expect={bound: 1}))
    rows = [
        Row(
            settings={path: listed[index] for path, listed in settings.items()},
            numbers=dict.fromkeys(made.take.formulas(), over[index]) if over else {},
        )
        for index in range(len(values))
    ]
    return made.take.number(rows, values)


def test_a_slope_and_how_straight_the_line_is() -> None:
    assert taken({"kind": "slope", "over": "W"}, [3, 5, 9], [1, 2, 4]) == pytest.approx(2)
    assert taken({"kind": "linearity", "over": "W"}, [3, 5, 9], [1, 2, 4]) == pytest.approx(1)
    assert taken({"kind": "linearity", "over": "W"}, [3, 9, 5], [1, 2, 4]) < 0.5
    with pytest.raises(ValueError, match="at least three"):
        taken({"kind": "linearity", "over": "W"}, [3, 5], [1, 2])


@pytest.mark.parametrize(
    ("take", "expect", "named"),
    [
        ({"kind": "most"}, {"at_least": 1, "at_most": 2}, "`at_least` of the most"),
        ({"kind": "most"}, {"within": "5%"}, "`within` of the most"),
        ({"kind": "least"}, {"at_most": 2}, "`at_most` of the least"),
        ({"kind": "least"}, {"difference": 1}, "`difference` of the least"),
        ({"kind": "ratio", "by": "most", "of": {"x": 1}, "to": {"x": 2}}, {"at_least": 1}, "`at_least` of the most"),
        ({"kind": "order", "by": "x", "falling": [1, 2]}, {"at_least": 1, "at_most": 2}, "`at_most` of the least"),
    ],
)
def test_what_leaves_one_side_of_the_other_points_unchecked_is_refused(
    take: dict[str, Any], expect: dict[str, Any], named: str
) -> None:
    with pytest.raises(SpecError, match=f"{named} says nothing of the others; take `farthest`"):
        parse_claims([claim(take=take, expect=expect, model="1")])
    bound = "at_most" if "most" in (take["kind"], take.get("by")) else "at_least"
    (kept,) = parse_claims([claim(take=take, expect={bound: 1}, model="1")])
    assert kept.take.extreme in ("least", "most")


def test_a_ratio_is_of_medians() -> None:
    values = ["ring", "ps", "ps", "ps"]
    take = {"kind": "ratio", "of": {"collective": "ps"}, "to": {"collective": "ring"}}
    assert taken(take, [2, 6, 8, 100], collective=values) == 4
    with pytest.raises(ValueError, match="no point has"):
        taken({**take, "to": {"collective": "tree"}}, [2, 6, 8, 100], collective=values)


def test_a_spread_and_extremes() -> None:
    assert taken({"kind": "spread"}, [2, 3, 4]) == 2
    with pytest.raises(ValueError, match=r"above 0 \(got -1\)"):
        taken({"kind": "spread"}, [-1, 5])
    assert [taken({"kind": kind}, [2, 3, 7]) for kind in ("least", "median", "mean", "most")] == [2, 3, 4, 7]


def test_an_order_is_as_sure_as_its_closest_neighbours() -> None:
    take = {"kind": "order", "by": "collective", "falling": ["ps", "p2p", "ring"]}
    assert taken(take, [1, 6, 3], collective=["ring", "ps", "p2p"]) == 2
    assert taken(take, [4, 6, 3], collective=["ring", "ps", "p2p"]) == 0.75


def test_the_first_place_that_reaches_a_level_lies_between_points() -> None:
    take = {"kind": "first", "over": "ratio", "level": 0.9}
    assert taken(take, [0.5, 0.8, 1.0], [1, 2, 4]) == pytest.approx(3)
    assert taken(take, [0.95, 1.0], [1, 2]) == 1
    assert taken(take, [0.5, 0.8], [1, 2]) == math.inf


def test_a_crossing_lies_where_the_ratio_is_one() -> None:
    take = {"kind": "crossing", "over": "size", "of": {"kind": "tree"}, "to": {"kind": "ring"}}
    kinds = ["tree", "ring"] * 3
    assert taken(take, [1, 4, 2, 4, 8, 4], [1, 1, 2, 2, 4, 4], kind=kinds) == pytest.approx(3)
    assert taken(take, [1, 4, 2, 4, 3, 4], [1, 1, 2, 2, 4, 4], kind=kinds) == math.inf
    assert taken(take, [5, 4, 2, 4, 3, 4], [1, 1, 2, 2, 4, 4], kind=kinds) == 1
    with pytest.raises(ValueError, match="at least two places"):
        taken(take, [1, 4, 2], [1, 1, 2], kind=["tree", "ring", "tree"])


def test_a_crossing_takes_the_median_of_points_at_one_place_whatever_their_order() -> None:
    take = {"kind": "crossing", "over": "size", "of": {"kind": "tree"}, "to": {"kind": "ring"}}
    kinds, over = ["tree", "tree", "tree", "ring", "tree", "ring"], [1, 1, 1, 1, 2, 2]
    for at_one in ([1, 9, 1], [9, 1, 1], [1, 1, 9]):
        assert taken(take, [*at_one, 2, 4, 2], over, kind=kinds) == pytest.approx(1.5)


def test_ranks_that_go_together() -> None:
    take = {"kind": "rank_correlation", "over": "W"}
    assert taken(take, [1, 10, 100], [1, 2, 3]) == pytest.approx(1)
    assert taken(take, [100, 10, 1], [1, 2, 3]) == pytest.approx(-1)
    assert taken(take, [1, 1, 5, 7], [1, 1, 2, 3]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("expect", "model", "right", "wrong"),
    [
        ({"within": "10%"}, 10.0, [9.0, 11.0], [8.99, 11.01]),
        ({"within": "10%"}, -10.0, [-9.0, -11.0], [-8.9, 11.0]),
        ({"difference": 5}, 10.0, [5.0, 15.0], [4.9, 15.1]),
        ({"at_least": 2}, None, [2.0, 3.0], [1.99]),
        ({"at_most": 2}, None, [2.0, -1.0], [2.01]),
        ({"at_least": 1, "at_most": 2}, None, [1.0, 2.0], [0.9, 2.1]),
        ({"within": "10%", "at_most": 10}, 10.0, [9.5], [10.5]),
        ({"within": "10%", "difference": 0.5}, 10.0, [9.5], [9.4, 10.6]),
        ({"within": "10%", "at_most": 5}, 10.0, [], [4.0, 7.0, 9.5]),
    ],
)
def test_both_sides_of_every_expectation(
    expect: dict[str, Any], model: float | None, right: list[float], wrong: list[float]
) -> None:
    expectation = Expectation.model_validate(expect)
    modelled = None if model is None else Interval(model, model)
    assert [expectation.holds(Interval(value, value), modelled) for value in right] == [True] * len(right)
    assert [expectation.holds(Interval(value, value), modelled) for value in wrong] == [False] * len(wrong)
    assert all(expectation.margin(value, model) >= 0 for value in right)
    assert all(expectation.margin(value, model) < 0 for value in wrong)


UP_TO_5, FROM_100, ANY = Interval(-math.inf, 5), Interval(100, math.inf), Interval(-math.inf, math.inf)


@pytest.mark.parametrize(
    ("expect", "measured", "model", "holds"),
    [
        ({"at_most": 5}, UP_TO_5, None, True),
        ({"at_most": 4}, UP_TO_5, None, None),
        ({"at_least": 5}, UP_TO_5, None, None),
        ({"at_least": 6}, UP_TO_5, None, False),
        ({"at_least": 100}, FROM_100, None, True),
        ({"at_least": 101}, FROM_100, None, None),
        ({"at_most": 99}, FROM_100, None, False),
        ({"at_least": 6, "at_most": 9}, UP_TO_5, None, False),
        ({"at_least": 3, "at_most": 9}, UP_TO_5, None, None),
        ({"within": "10%"}, FROM_100, Interval(99, 99), None),
        ({"within": "10%"}, FROM_100, Interval(90, 90), False),
        ({"within": "10%"}, UP_TO_5, Interval(5, 5), None),
        ({"within": "10%"}, UP_TO_5, Interval(6, 6), False),
        ({"within": "10%"}, Interval(80, 80), FROM_100, False),
        ({"within": "10%"}, Interval(95, 95), FROM_100, None),
        ({"within": "10%"}, Interval(5.4, 5.4), UP_TO_5, None),
        ({"within": "10%"}, Interval(5.6, 5.6), UP_TO_5, False),
        ({"within": "10%"}, Interval(-120, -120), Interval(-math.inf, -100), None),
        ({"within": "10%"}, Interval(-80, -80), Interval(-math.inf, -100), False),
        ({"difference": 3}, FROM_100, FROM_100, None),
        ({"difference": 3}, UP_TO_5, FROM_100, False),
        ({"difference": 3}, FROM_100, UP_TO_5, False),
        ({"difference": 3, "at_most": 99}, FROM_100, FROM_100, False),
        ({"difference": 3, "at_most": 99}, Interval(99, 99), FROM_100, None),
        ({"within": "10%", "at_least": 9, "at_most": 8}, ANY, Interval(8, 8), False),
        ({"difference": 3}, Interval(4, 5), Interval(4, 6), True),
        ({"difference": 1.5}, Interval(4, 5), Interval(4, 6), None),
    ],
)
def test_bounds_decide_where_all_that_the_numbers_may_be_is_as_expected_or_nothing_is(
    expect: dict[str, Any], measured: Interval, model: Interval | None, holds: bool | None
) -> None:
    assert Expectation.model_validate(expect).holds(measured, model) is holds


def test_a_number_is_finite_or_there_is_none() -> None:
    made = Claim.model_validate(claim(take={"kind": "spread"}, expect={"at_most": 2}))
    rows = [Row(settings={}, numbers={})] * 2
    assert made.take.interval(rows, [1.0, 3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="no finite number"):
        made.take.interval(rows, [1e-308, 1e308])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expect": {}}, "claims.0.expect: Value error, says nothing"),
        ({"expect": {"within": "10%"}}, "compare with a `model`"),
        ({"expect": {"within": "2"}}, "claims.0.expect.within"),
        ({"take": {"kind": "slop"}}, "claims.0.take"),
        ({"take": {"kind": "slope"}}, "claims.0.take.slope.over"),
        ({"paper": {"says": "x", "evidence": "hearsay"}}, "claims.0.paper.evidence"),
        ({"why": ""}, "claims.0.why"),
        ({"wher": {}}, "claims.0.wher"),
        ({"expect": {"at_least": math.inf}}, "claims.0.expect.at_least: Input should be a finite number"),
        ({"paper": {"says": "x", "evidence": "code", "value": math.nan}}, "claims.0.paper.value"),
    ],
)
def test_what_cannot_be_right_names_its_field(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        parse_claims([claim(**keys)])


def test_names_tell_claims_apart() -> None:
    with pytest.raises(SpecError, match="'c' is there twice"):
        parse_claims([claim(), claim()])
    with pytest.raises(SpecError, match="claims: a list"):
        parse_claims({"c": claim()})


@pytest.mark.parametrize(
    ("setting", "wanted", "found"),
    [
        ("ring", "ring", True),
        ({"kind": "ring", "segment": 1}, "ring", True),
        ({"kind": "all_to_all", "exchange": "full"}, {"kind": "all_to_all", "exchange": "shards"}, False),
        (4, [2, 4], True),
        (8, [2, 4], False),
        (["2MiB"], ["2MiB"], True),
        (["2MiB"], [["1MiB"], ["2MiB"]], True),
        (["2MiB"], [["1MiB"]], False),
        ("ring", {"kind": "ring"}, False),
    ],
)
def test_points_are_found_by_settings(setting: object, wanted: object, found: bool) -> None:
    assert matches({"x": setting}, {"x": wanted}) == found
    assert not matches({}, {"x": wanted})


def test_nothing_unverified_is_a_number_of_the_paper() -> None:
    for key, value in (("value", 0.05), ("points", [[1, 2]])):
        with pytest.raises(SpecError, match="nobody checked"):
            parse_claims([claim(paper={"says": "5 %", "evidence": "unverified", key: value})])
