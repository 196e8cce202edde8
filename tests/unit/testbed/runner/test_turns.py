"""Whose turn it is: rounds in seeded order, invalid runs again at a round's end, and on from any interruption."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from testbed.record.summary import Outcome, Summary
from testbed.report.comparison.points import ComparedPoint
from testbed.runner.turns import next_turn, order_of_round
from testbed.store.differences import RunValues, difference
from tests.over_all import over_all


def points(number: int, *, repeat: int = 1, retries: int = 0) -> list[ComparedPoint]:
    return [
        ComparedPoint(
            settings={"seed": position},
            spec_sha256=f"{position}",
            bound_s=0.1,
            schedule_bound_s=0.1,
            predicted_s=0.1,
            num_requested=repeat,
            num_retries=retries,
            runs=(),
        )
        for position in range(number)
    ]


def turns(
    summary: Summary, swept: list[ComparedPoint], seed: int, outcome: Callable[[int, int], Outcome] = lambda *_: "valid"
) -> list[int]:
    """The positions in the order in which they run, until all are done; `outcome` by position and number of the try."""
    made = []
    while (position := next_turn(swept, seed)) is not None:
        point = swept[position]
        run = summary.model_copy(update={"outcome": outcome(position, len(point.runs)), "reasons": ["because"]})
        swept[position] = replace(point, runs=(*point.runs, run))
        made.append(position)
        assert len(made) < 1000
    return made


def test_every_round_runs_every_point_once_and_the_next_one_the_other_way_round(summary: Summary) -> None:
    made = turns(summary, points(6, repeat=4), seed=3)
    rounds = [made[index : index + 6] for index in range(0, 24, 6)]
    assert all(sorted(each) == list(range(6)) for each in rounds)
    assert rounds[1] == rounds[0][::-1]
    assert rounds[3] == rounds[2][::-1]
    assert rounds[2] != rounds[0]


def test_the_order_is_the_seeds() -> None:
    assert order_of_round(8, 0, 1) == order_of_round(8, 0, 1)
    assert len({tuple(order_of_round(8, 0, seed)) for seed in range(20)}) > 15
    assert order_of_round(8, 0, 1) == [3, 1, 7, 2, 5, 4, 6, 0], "on every machine, in every version of Python"


def test_drift_does_not_become_a_result(summary: Summary) -> None:
    """A machine that grows slower by 1 % with every run, and points that are all alike: run one point after the other,
    the last would seem 80 % slower than the first; in turns there is nothing to be seen."""
    made = turns(summary, points(9, repeat=10), seed=1)
    times_s: dict[int, list[RunValues]] = {}
    for number, position in enumerate(made):
        at = f"2026-11-22T{number // 60:02}:{number % 60:02}:00+00:00"
        times_s.setdefault(position, []).append(RunValues(at, [1.0 + 0.01 * number]))
    for position in range(1, 9):
        found = difference(times_s[0], times_s[position])
        assert found.basis == "pairs"
        assert found.ratio == pytest.approx(1, abs=0.005)
        assert not found.distinguishable


def test_an_invalid_run_is_repeated_at_the_end_of_its_round_up_to_the_limit(summary: Summary) -> None:
    def first_is_invalid(position: int, number: int) -> Outcome:
        return "invalid" if position == 2 and number == 0 else "valid"

    swept = points(4, repeat=2, retries=1)
    made = turns(summary, swept, 1, first_is_invalid)
    assert (len(made), made[:4], made[4]) == (9, order_of_round(4, 0, 1), 2)
    assert [point.outcome for point in swept] == ["valid"] * 4
    assert [len(point.repeated) for point in swept] == [0, 0, 1, 0]

    swept = points(2, repeat=3, retries=2)
    made = turns(summary, swept, 1, lambda position, _: "invalid" if position == 0 else "valid")
    assert (made.count(0), made.count(1)) == (5, 3), "three and two in place of others"
    assert (swept[0].outcome, len(swept[0].repeated)) == ("invalid", 2)


def test_what_failed_is_not_repeated(summary: Summary) -> None:
    swept = points(2, repeat=2, retries=3)
    assert sorted(turns(summary, swept, 1, lambda position, _: "failed" if position else "degraded")) == [0, 0, 1, 1]
    assert [point.outcome for point in swept] == ["degraded", "failed"]


@over_all("seed", range(20))
def test_whose_turn_it_is_follows_from_what_there_is(summary: Summary, seed: int) -> None:
    """Whoever has forgotten everything but the runs goes on as if nothing had happened."""
    draw = random.Random(seed)
    bad = {(draw.randrange(5), draw.randrange(4)) for _ in range(6)}

    def outcome(position: int, number: int) -> Outcome:
        return "invalid" if (position, number) in bad else "valid"

    def fresh() -> list[ComparedPoint]:
        return points(5, repeat=3, retries=2)

    whole = turns(summary, fresh(), seed, outcome)
    for end in range(len(whole)):
        swept = fresh()
        for position in whole[:end]:
            run = summary.model_copy(update={"outcome": outcome(position, len(swept[position].runs))})
            swept[position] = replace(swept[position], runs=(*swept[position].runs, run))
        assert turns(summary, swept, seed, outcome) == whole[end:]
