"""A claim is judged by its points, and only as good as the runs below it."""

import math
from typing import Any

import pytest

from testbed.claims.judge import Judgement, Point, judge
from testbed.experiment.claims import Claim

CLAIM = {
    "name": "grows", "of": "time_s", "model": "2 * W", "where": {"collective": "ps"}, "why": "because",
    "take": {"kind": "slope", "over": "W"}, "expect": {"within": "10%"},
}  # fmt: skip


def judged(
    times_s: dict[int, float | None],
    outcomes: dict[int, str] | None = None,
    unlike: dict[int, tuple[str, ...]] | None = None,
    **keys: Any,
) -> Judgement:
    points = [
        Point(
            settings={"collective": "ps", "workers": workers},
            text=f"workers={workers}",
            outcome=(outcomes or {}).get(workers, "valid"),
            numbers={"W": float(workers), "time_s": time_s},
            unlike=(unlike or {}).get(workers, ()),
        )
        for workers, time_s in times_s.items()
    ]
    other = Point(settings={"collective": "ring"}, text="ring", outcome="invalid", numbers={"W": 2.0, "time_s": 99.0})
    return judge(Claim.model_validate({**CLAIM, **keys}), [*points, other])


def test_a_spread_of_one_point_is_no_spread() -> None:
    spread: dict[str, Any] = {"take": {"kind": "spread"}, "model": None, "expect": {"at_most": 1.1}}
    assert judged({2: 4.0, 4: 4.1}, **spread).state == "holds"
    found = judged({2: 4.0}, **spread)
    assert (found.state, "two points or more (got 1)" in found.reason) == ("not judged", True)


def test_paper_model_and_measurement_stand_side_by_side() -> None:
    found = judged({2: 4.1, 4: 8.1, 8: 16.1})
    assert (found.state, found.reason) == ("holds", "")
    assert found.holds
    assert abs((found.measured or 0) - 2) < 1e-9
    assert abs((found.model or 0) - 2) < 1e-9
    assert [(point.text, point.over, point.measured, point.model) for point in found.points] == [
        ("workers=2", 2.0, 4.1, 4.0),
        ("workers=4", 4.0, 8.1, 8.0),
        ("workers=8", 8.0, 16.1, 16.0),
    ]


def test_a_wrong_measurement_fails_and_says_what_was_expected() -> None:
    found = judged({2: 4.0, 4: 9.0, 8: 20.0})
    assert found.state == "fails"
    assert not found.holds
    assert found.reason == "expected within 10 % of the model"


def test_one_bad_run_and_the_claim_is_not_judged() -> None:
    for outcome in ("invalid", "failed", "unsupported", "not run"):
        found = judged({2: 4.0, 4: 8.0, 8: 16.0}, {4: outcome})
        assert found.state == "not judged"
        assert found.measured is None
        assert found.reason == f"workers=4: {outcome}"


def test_degraded_runs_carry_on_into_the_claim() -> None:
    assert judged({2: 4.0, 4: 8.0, 8: 16.0}, {4: "degraded"}).state == "degraded"
    assert judged({2: 4.0, 4: 8.0, 8: 16.0}, {4: "degraded"}).holds
    found = judged({2: 4.0, 4: 9.0, 8: 20.0}, {4: "degraded"})
    assert found.state == "not judged"
    assert "1 of 3 points degraded" in found.reason


def test_runs_that_were_made_otherwise_are_named_and_prove_nothing() -> None:
    unlike = {2: ("another machine (x)",), 4: ("another machine (x)", "another program")}
    found = judged({2: 4.0, 4: 8.0, 8: 16.0}, unlike=unlike)
    assert (found.state, found.holds) == ("degraded", True)
    assert found.reason == "2 of 3 points made otherwise: another machine (x); another program"
    refuted = judged({2: 4.0, 4: 9.0, 8: 20.0}, {8: "degraded"}, unlike)
    assert refuted.state == "not judged"
    assert "; 1 of 3 points degraded; 2 of 3 points made otherwise: " in refuted.reason


@pytest.mark.parametrize("outcome", ["degraded", "invalid", "not run"])
@pytest.mark.parametrize(
    "take",
    [
        {"kind": "ratio", "of": {"workers": 8}, "to": {"workers": 2}},
        {"kind": "order", "by": "workers", "falling": [8, 2]},
    ],
)
def test_a_point_that_is_not_compared_has_no_say(take: dict[str, Any], outcome: str) -> None:
    keys: dict[str, Any] = {"take": take, "expect": {"at_least": 1}}
    refuted = judged({2: 4.0, 4: None, 8: 2.0}, {4: outcome}, **keys)
    assert (refuted.state, refuted.reason) == ("fails", "expected at least 1")
    assert [point.text for point in refuted.points] == ["workers=2", "workers=8"]
    assert judged({2: 4.0, 4: None, 8: 8.0}, {4: outcome}, **keys).state == "holds"
    assert (
        judged({2: 4.0, 4: 3.0, 8: 2.0}, {8: "degraded"}, **keys).reason
        == "expected at least 1; 1 of 2 points degraded"
    )


def test_a_number_that_a_run_does_not_have_is_named() -> None:
    found = judged({2: 4.0, 4: None, 8: 16.0})
    assert (found.state, found.reason) == ("not judged", "time_s: the run does not have it")
    assert judged({2: 4.0}, where={"collective": "tree"}).reason == "no point has {'collective': 'tree'}"


def test_the_point_farthest_from_the_model_decides_and_is_the_one_that_is_shown() -> None:
    take = {"kind": "farthest", "over": "W"}
    near = judged({2: 4.1, 4: 8.3, 8: 15.8}, take=take, expect={"difference": 0.35})
    assert (near.state, near.measured, near.model) == ("holds", 8.3, 8.0)
    far = judged({2: 4.1, 4: 8.3, 8: 15.6}, take=take, expect={"difference": 0.35})
    assert (far.state, far.measured, far.model) == ("fails", 15.6, 16.0)
    assert [point.over for point in far.points] == [2.0, 4.0, 8.0]
    share = judged({2: 5.0, 4: 8.3, 8: 17.4}, take=take)
    assert (share.state, share.measured, share.model) == ("fails", 5.0, 4.0), "1.4 of 16 is farther, and within 10 %"
    assert judged({2: 4.1, 4: None}, take=take, expect={"difference": 1}).state == "not judged"


def test_each_point_is_held_to_all_that_is_expected() -> None:
    keys: dict[str, Any] = {"take": {"kind": "farthest"}, "of": "time_s / W"}
    bounds = {**keys, "model": None, "expect": {"at_least": 0.9, "at_most": 1.2}}
    near = judged({2: 2.3, 4: 4.0}, **bounds)
    assert (near.state, near.measured) == ("holds", 2.3 / 2), "it is 0.05 below what is allowed, the other 0.1 above"
    assert (judged({2: 2.2, 4: 0.4}, **bounds).state, judged({2: 2.2, 4: 40}, **bounds).state) == ("fails", "fails")
    both = {**keys, "model": "W", "of": "time_s", "expect": {"within": "10%", "at_most": 4.2}}
    assert judged({2: 1.9, 4: 4.1}, **both).state == "holds"
    over = judged({2: 2.2, 4: 4.3}, **both)
    assert (over.state, over.measured, over.model) == ("fails", 4.3, 4.0), "2.2 is farther from its model, and allowed"


def test_what_is_no_number_is_not_judged() -> None:
    take, expect = {"kind": "most"}, {"at_most": 9}
    for first_s, second_s in ((4.1, math.nan), (math.nan, 4.1), (4.1, math.inf)):
        assert judged({2: first_s, 4: second_s}, take=take, expect=expect).state == "not judged"
    assert judged({2: 4.1}, of="(time_s - W ** 3) ** 0.5", take=take, expect=expect).state == "not judged"
    assert judged({2: -1.0, 4: 5.0}, take={"kind": "spread"}, expect=expect).state == "not judged"


def test_a_place_that_was_reached_before_the_first_point_is_somewhere_up_to_it() -> None:
    take = {"kind": "first", "over": "W", "level": 1.1}
    keys: dict[str, Any] = {"take": take, "model": "W / 4", "expect": {"difference": 3}}
    assert judged({2: 0.6, 4: 1.0, 8: 2.0}, **keys).state == "holds"
    early = judged({2: 5.0, 4: 5.0, 8: 5.0}, **keys)
    assert (early.state, early.measured, early.model) == ("not judged", None, 4.4), "2 is near 4.4, 0.1 is not"
    assert early.reason == (
        "expected within 3 of the model, which bounds do not decide; reached at the first place already, W 2"
    )
    far = judged({2: 5.0, 4: 5.0, 8: 5.0}, **{**keys, "expect": {"difference": 2}})
    assert far.state == "fails", "2 is the nearest that it may be"
    by_model: dict[str, Any] = {**keys, "model": "W"}
    assert judged({2: 0.6, 4: 1.0, 8: 2.0}, **by_model).state == "not judged", "4.4 is near 2"
    assert judged({2: 0.6, 4: 0.7, 8: 2.0}, **by_model).state == "fails", "5.2 is not"
    both = judged({2: 5.0, 4: 5.0, 8: 5.0}, **by_model)
    assert both.state == "not judged", "twice as many or half: neither is known"
    assert "reached at the first place already, W 2; reached by the model at the first place already" in both.reason


def test_a_place_that_is_only_a_bound_is_judged_where_the_bound_decides() -> None:
    take = {"kind": "first", "over": "W", "level": 0.9}
    reached: dict[int, float | None] = {5: 0.95, 10: 1.0, 100: 1.0}
    never: dict[int, float | None] = {5: 0.1, 10: 0.5, 100: 0.89}

    def state(values: dict[int, float | None], **expect: float) -> str:
        return judged(values, take=take, model=None, expect=expect).state

    assert [state(reached, at_most=most) for most in (10, 5, 4)] == ["holds", "holds", "not judged"]
    assert [state(reached, at_least=least) for least in (50, 5)] == ["fails", "not judged"]
    assert [state(never, at_least=least) for least in (50, 100, 200)] == ["holds", "holds", "not judged"]
    assert [state(never, at_most=most) for most in (50, 100, 200)] == ["fails", "fails", "not judged"]
    found = judged(reached, take=take, model=None, expect={"at_most": 10})
    assert (found.measured, found.reason) == (None, "reached at the first place already, W 5")


def test_a_place_that_is_never_reached_is_somewhere_beyond_the_last() -> None:
    keys: dict[str, Any] = {"take": {"kind": "first", "over": "W", "level": 9}, "expect": {"difference": 3}}
    found = judged({2: 1.0, 4: 2.0, 8: 3.0}, **keys, model="W")
    assert (found.state, found.measured, found.model) == ("not judged", None, None)
    assert "never reached by the model up to the last place, W 8" in found.reason
    late = judged({2: 1.0, 4: 2.0, 8: 3.0}, **keys, model="2 * W")
    assert (late.state, late.measured, late.model) == ("fails", None, 4.5)
    assert late.reason == "expected within 3 of the model; never reached up to the last place, W 8"
    early = judged({2: 4.0, 4: 8.0, 8: 16.0}, **keys, model="W")
    assert (early.state, early.measured, early.model) == ("fails", 4.5, None)
    assert early.reason == "expected within 3 of the model; never reached by the model up to the last place, W 8"
    near = judged({2: 1.0, 4: 2.0, 8: 8.9}, **keys, model="1.2 * W")
    assert (near.state, near.model) == ("not judged", 7.5), "8.1 is within 3 of 7.5"
    doubtful = judged({2: 1.0, 4: 2.0, 8: 8.9}, {2: "degraded"}, **keys, model="1.2 * W")
    assert doubtful.state == "not judged"


def crossing_of(times_s: dict[str, dict[float, float]], bad: str = "", **keys: Any) -> Judgement:
    """Of collectives' times by size: where the tree becomes worse than the ring."""
    take = {"kind": "crossing", "over": "size", "of": {"collective": "tree"}, "to": {"collective": "ring"}}
    points = [
        Point(
            settings={"collective": collective},
            text=collective,
            outcome="invalid" if collective == bad else "valid",
            numbers={"size": size, "time_s": time_s, "by_model": size / 4 if collective == "tree" else 1.0},
        )
        for collective, found in times_s.items()
        for size, time_s in found.items()
    ]
    return judge(Claim.model_validate({**CLAIM, "model": None, "where": {}, "take": take, **keys}), points)


def test_a_crossing_is_of_the_two_that_it_compares() -> None:
    times_s = {"tree": {1.0: 1.0, 2.0: 9.0}, "ring": {1.0: 4.0, 2.0: 4.0}, "other": {1.0: 2.0, 2.0: 2.0}}
    found = crossing_of(times_s, "other", expect={"at_most": 2})
    assert (found.state, len(found.points)) == ("holds", 4)


def test_a_crossing_before_the_first_place_that_both_have_is_somewhere_up_to_it() -> None:
    keys: dict[str, Any] = {"model": "by_model", "expect": {"difference": 3}}
    ring = {1.0: 4.0, 2.0: 4.0, 4.0: 4.0, 8.0: 4.0}
    found = crossing_of({"tree": {2.0: 5.0, 4.0: 6.0, 8.0: 9.0}, "ring": ring}, **keys)
    assert found.state == "not judged"
    assert "reached at the first place already, size 2" in found.reason
    assert crossing_of({"tree": {2.0: 3.0, 4.0: 6.0, 8.0: 9.0}, "ring": ring}, **keys).state == "holds"
