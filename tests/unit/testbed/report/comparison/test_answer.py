"""The sentences of a sweep: right about who is fastest, from where on, and silent where there is nothing to say."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.record.summary import Outcome, Summary
from testbed.report.comparison import answer as module
from testbed.report.comparison.answer import NOISE_UNKNOWN, answer
from testbed.report.comparison.points import Comparison
from testbed.store.differences import Difference, RunValues, difference
from tests.compared import compared_point

DRIFT = (1.0, 1.1, 1.2)
"""What three rounds take: all points alike, so that nothing of it is in the ratios."""
Times = Mapping[tuple[Any, ...], float | Sequence[float] | None]


def taking(summary: Summary, time_s: float, at: str, outcome: Outcome = "valid") -> Summary:
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    update = {
        "iteration_time_s": quantiles.model_copy(update={"mean": time_s}),
        "exposed_communication_s": 0.4 * time_s,
    }
    reasons = [] if outcome == "valid" else ["because"]
    return summary.model_copy(update={**update, "started_at": at, "outcome": outcome, "reasons": reasons})


def swept(
    summary: Summary,
    times_s: Times,
    *paths: str,
    rounds: Sequence[float] = DRIFT,
    degraded: Sequence[tuple[Any, ...]] = (),
) -> Comparison:
    """A sweep whose points take so long: a number in each round, by its factor, or the times of their runs."""

    def runs(position: int, values: tuple[Any, ...], time_s: float | Sequence[float]) -> list[Summary]:
        each_s = [time_s * factor for factor in rounds] if isinstance(time_s, float) else time_s
        outcome: Outcome = "degraded" if values in degraded else "valid"
        return [
            taking(summary, one_s, f"2026-11-22T{number:02}:{position:02}:00+00:00", outcome)
            for number, one_s in enumerate(each_s)
        ]

    points = tuple(
        compared_point(
            dict(zip(paths, values, strict=True)),
            *(() if time_s is None else runs(position, values, time_s)),
            bound_s=0.1,
            schedule_bound_s=0.1,
            predicted_s=0.1,
            num_requested=len(rounds),
        )
        for position, (values, time_s) in enumerate(times_s.items())
    )
    return Comparison(name="x", axes=tuple((path,) for path in paths), points=points, directory=Path())


def noisy(seed: int, time_s: float, number: int = 5) -> list[float]:
    """Runs that differ by 1 %, each for itself."""
    draw = random.Random(seed)
    return [time_s * math.exp(draw.gauss(0, 0.01)) for _ in range(number)]


def test_a_quantity_is_enough_where_more_is_noise(summary: Summary) -> None:
    times_s = {
        ("400mbit",): noisy(1, 0.1),
        ("25mbit",): noisy(2, 0.8),
        ("200mbit",): noisy(3, 0.1),
        ("100mbit",): noisy(4, 0.2),
    }
    (sentence,) = answer(swept(summary, times_s, "link.rate"))
    beginning, _, beyond = sentence.partition("; ")
    assert beginning.startswith(
        "From 25mbit to 200mbit an iteration becomes 8.03 (7.86 to 8.2) times as fast (805 ms, 100 ms)"
    )
    assert beyond.startswith("what lies beyond, up to 400mbit, is no faster by more than noise (")
    assert beyond.endswith("At 400mbit 40 % of an iteration waits for communication.")


def test_a_small_step_counts_where_it_is_more_than_noise(summary: Summary) -> None:
    times_s: Times = {("0ms",): 0.1, ("2ms",): 0.102, ("10ms",): 0.8}
    (sentence,) = answer(swept(summary, times_s, "link.delay"))
    assert sentence.startswith("From 10ms to 0ms an iteration becomes 8 (8 to 8) times as fast (880 ms, 110 ms); ")
    assert "every step of link.delay counts, the last from 2ms on 1.02 (1.02 to 1.02) times." in sentence


def test_a_quantity_without_effect_is_said_to_have_none(summary: Summary) -> None:
    (sentence,) = answer(swept(summary, {("0ms",): noisy(1, 0.1), ("2ms",): noisy(2, 0.1)}, "link.delay"))
    assert sentence.startswith("link.delay makes no difference here beyond noise: ")


def test_a_quantity_that_is_best_in_the_middle_is_said_to_be(summary: Summary) -> None:
    times_s: Times = {(1,): 0.9, (2,): 0.3, (4,): 0.6}
    (sentence,) = answer(swept(summary, times_s, "workload.batch_size"))
    assert "From 1 to 2 an iteration becomes 3 (3 to 3) times as fast" in sentence
    assert "beyond, up to 4, becomes slower again (660 ms, 2 (2 to 2) times as long)." in sentence


def test_a_quantity_that_is_worst_in_the_middle_is_said_to_be(summary: Summary) -> None:
    times_s: Times = {(1,): 0.3, (2,): 0.9, (4,): 0.3}
    (sentence,) = answer(swept(summary, times_s, "workload.batch_size"))
    assert sentence.startswith(
        "workload.batch_size matters at 2: an iteration takes 990 ms there, 3 (3 to 3) times as long"
    )


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        (
            {"none": 0.58, "layers": 0.4, "priority": 0.36},
            "priority is the fastest with 396 ms, 1.61 (1.61 to 1.61) times as fast as none (638 ms).",
        ),
        (
            {"none": 0.1, "merged": 0.3},
            "Nothing is faster than none (110 ms) by more than noise; merged takes 3 (3 to 3)",
        ),
        (
            {"none": noisy(1, 0.1), "layers": noisy(2, 0.1), "merged": noisy(3, 0.1)},
            "None can be told apart from none (100 ms): 0.985 to 1.02 times as long.",
        ),
        ({"none": noisy(1, 0.1), "layers": noisy(2, 0.1)}, "layers cannot be told apart from none"),
        (
            {"none": noisy(1, 0.2), "layers": noisy(2, 0.1), "merged": noisy(3, 0.1)},
            "merged is the fastest with 100 ms, 2 (1.97 to 2.03) times as fast as none (200 ms); layers cannot be",
        ),
    ],
)
def test_names_are_compared_with_the_first(summary: Summary, times_s: Times, expected: str) -> None:
    (sentence,) = answer(swept(summary, {(name,): time_s for name, time_s in times_s.items()}, "fusion"))
    assert sentence.startswith(expected)


def test_several_along_a_quantity_tell_who_is_fastest_where_and_who_pays(summary: Summary) -> None:
    none, fp16, int8, top_k = "none", "fp16", "int8", "top_k"
    times_s: Times = {
        ("25mbit", none): 0.8,
        ("25mbit", fp16): 0.4,
        ("25mbit", int8): 0.9,
        ("25mbit", top_k): 0.1,
        ("100mbit", none): 0.2,
        ("100mbit", fp16): 0.15,
        ("100mbit", int8): 0.3,
        ("100mbit", top_k): 0.1,
        ("400mbit", none): 0.1,
        ("400mbit", fp16): 0.1,
        ("400mbit", int8): 0.3,
        ("400mbit", top_k): None,
    }
    best, pays, unknown = answer(swept(summary, times_s, "link.rate", "compression"))
    assert best == (
        "At 25mbit and 100mbit top_k is the fastest, 8 (8 to 8) and 2 (2 to 2) times as fast as none; "
        "at 400mbit nothing is faster than none."
    )
    assert pays == "Faster than none by more than noise at 25mbit and 100mbit: fp16, top_k; nowhere: int8."
    assert unknown == "No result stands at 400mbit: top_k."


def test_equals_share_the_first_place(summary: Summary) -> None:
    times_s: Times = {
        ("25mbit", "none"): noisy(1, 0.8),
        ("25mbit", "fp16"): noisy(2, 0.4),
        ("25mbit", "int8"): noisy(3, 0.4),
        ("25mbit", "qsgd"): noisy(4, 0.5),
        ("50mbit", "none"): noisy(5, 0.4),
    }
    best, pays, *_ = answer(swept(summary, times_s, "link.rate", "compression"))
    assert best.startswith("At 25mbit fp16 or int8 is the fastest, 2 (1.97 to 2.03) times as fast as none")
    assert pays == "Faster than none by more than noise at 25mbit: fp16, int8, qsgd."


def test_everywhere_is_only_where_all_have_a_result(summary: Summary) -> None:
    times_s = {("25mbit", "none"): 0.8, ("25mbit", "fp16"): 0.4, ("1gbit", "none"): 0.1, ("1gbit", "fp16"): None}
    assert answer(swept(summary, times_s, "link.rate", "compression")) == [
        "At 25mbit fp16 is the fastest, 2 (2 to 2) times as fast as none.",
        "Faster than none by more than noise at 25mbit: fp16.",
        "No result stands at 1gbit: fp16.",
    ]


def test_what_has_no_result_is_not_spoken_of(summary: Summary) -> None:
    assert answer(swept(summary, {("none",): None, ("layers",): 0.4}, "fusion")) == []
    assert answer(swept(summary, {("1mbit", "none"): 0.4, ("2mbit", "fp16"): 0.4}, "link.rate", "compression")) == []


def test_who_has_no_result_at_all_is_named_among_several_and_what_was_left_out_is_not(summary: Summary) -> None:
    times_s: Times = {
        ("1ms", "ring"): 0.8,
        ("1ms", "tree"): 0.9,
        ("1ms", "auto"): None,
        ("1ms", "hd"): 0.9,
        ("2ms", "ring"): 0.9,
        ("2ms", "tree"): None,
        ("2ms", "auto"): None,
    }
    *_, unknown = answer(swept(summary, times_s, "link.delay", "collective"))
    assert unknown == "No result stands at 2ms: tree; anywhere: auto."


def test_of_what_is_nowhere_faster_it_is_said_how_much_slower(summary: Summary) -> None:
    times_s: Times = {
        ("0.1%", "in_network"): 2.0,
        ("0.1%", "ring"): 3.0,
        ("0.1%", "gloo"): 3.2,
        ("0.1%", "tree"): 2.0,
        ("1%", "in_network"): 2.0,
        ("1%", "ring"): 3.5,
        ("1%", "gloo"): 2.0,
        ("1%", "tree"): 2.0,
    }
    best, slower = answer(swept(summary, times_s, "link.loss", "collective"))
    assert best == "At 0.1% and 1% nothing is faster than in_network."
    assert slower == (
        "ring takes 1.5 to 1.75 times as long, gloo takes 1.6 (1.6 to 1.6) times as long at 0.1% "
        "and cannot be told apart elsewhere "
        "and tree cannot be told apart from it."
    )


@pytest.mark.parametrize(
    ("times_s", "paths", "expected"),
    [
        (
            {("none",): 0.2, ("layers",): 0.1},
            ["fusion"],
            "In these runs layers was the fastest with 100 ms, 2 times as fast as none (200 ms).",
        ),
        (
            {("none",): 0.1, ("layers",): 0.2},
            ["fusion"],
            "In these runs none (100 ms) was the fastest; layers took 2 times as long.",
        ),
        (
            {("25mbit",): 0.8, ("400mbit",): 0.1},
            ["link.rate"],
            "In these runs an iteration took 800 ms at 25mbit and 100 ms at 400mbit: 8 times as fast.",
        ),
        (
            {("1ms", "ring"): 0.8, ("1ms", "tree"): 0.4, ("2ms", "ring"): 0.8, ("2ms", "tree"): 0.9},
            ["link.delay", "collective"],
            "In these runs at 1ms tree was the fastest, 2 times as fast as ring; at 2ms nothing was faster than ring.",
        ),
    ],
)
def test_with_one_run_of_each_nothing_is_claimed(
    summary: Summary, times_s: Times, paths: list[str], expected: str
) -> None:
    first, second = answer(swept(summary, times_s, *paths, rounds=[1.0]))
    assert first == NOISE_UNKNOWN
    assert second.startswith(expected)


def test_what_has_one_run_among_others_with_several_is_left_out_and_named(summary: Summary) -> None:
    times_s: Times = {("none",): 0.2, ("layers",): [0.01], ("merged",): 0.1}
    assert answer(swept(summary, times_s, "fusion")) == [
        "merged is the fastest with 110 ms, 2 (2 to 2) times as fast as none (220 ms).",
        "One run alone, of which no difference is claimed: layers.",
    ]


def test_where_too_few_have_several_runs_nothing_is_claimed_of_any(summary: Summary) -> None:
    times_s: Times = {("1ms", "ring"): 0.8, ("1ms", "tree"): [0.4], ("2ms", "ring"): 0.8, ("2ms", "tree"): [0.4]}
    first, *_ = answer(swept(summary, times_s, "link.delay", "collective"))
    assert first == NOISE_UNKNOWN


@pytest.mark.parametrize("rounds", [[1.0], DRIFT])
def test_what_is_degraded_is_called_so_wherever_it_is_named(summary: Summary, rounds: Sequence[float]) -> None:
    def said(times_s: Times, degraded: list[tuple[Any, ...]], *paths: str) -> tuple[str, str]:
        *_, sentence, last = answer(swept(summary, times_s, *paths, rounds=rounds, degraded=degraded))
        return sentence, last

    sentence, last = said({("none",): 0.2, ("layers",): 0.1}, [("layers",)], "fusion")
    assert "layers (degraded) " in sentence
    assert last == "Degraded, so with reservations: layers."
    sentence, last = said({("25mbit",): 0.8, ("50mbit",): 0.4}, [("25mbit",), ("50mbit",)], "link.rate")
    assert ("25mbit (degraded)" in sentence, "50mbit (degraded)" in sentence) == (True, True)
    assert last == "Degraded, so with reservations: all 2 points."
    grid: Times = {("1ms", "ring"): 0.8, ("1ms", "tree"): 0.4, ("2ms", "ring"): 0.8, ("2ms", "tree"): 0.4}
    comparison = swept(summary, grid, "link.delay", "collective", rounds=rounds, degraded=[("2ms", "tree")])
    sentences = answer(comparison)
    assert any("t 1ms and 2ms (degraded) tree" in sentence for sentence in sentences)
    assert sentences[-1] == "Degraded, so with reservations: 2ms tree."


def test_points_whose_values_look_alike_are_all_spoken_of(summary: Summary) -> None:
    paths = ("hosts.w0.slowdown", "hosts.w1.slowdown")
    comparison = swept(summary, {(None, None): 3.0, (2, None): 1.5, (None, 2): 1.0}, *paths)
    (sentence,) = answer(replace(comparison, axes=(paths,)))
    fastest, first = (f"{paths[0]}=null {paths[1]}={value}" for value in (2, "null"))
    assert sentence.startswith(f"{fastest} is the fastest with 1.1 s, 3 (3 to 3) times as fast as {first} (3.3 s)")


def test_of_points_of_which_some_runs_do_not_stand_it_is_said_how_many_do(summary: Summary) -> None:
    comparison = swept(summary, {("25mbit",): 0.8, ("50mbit",): 0.4}, "link.rate")
    first, second = comparison.points
    bad = taking(summary, 9.0, "2026-11-22T09:00:00+00:00", "invalid")
    partly = replace(first, runs=(*first.runs, bad, bad), num_requested=5)
    assert answer(replace(comparison, points=(partly, second)))[-1] == "Only some runs stand of 25mbit (3 of 5)."
    repeated = replace(partly, num_requested=3, num_retries=2)
    assert len(answer(replace(comparison, points=(repeated, second)))) == 1, "others were made in their place"


def test_many_points_cost_few_comparisons_each(summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    num_compared = 0

    def counted(*runs: Sequence[RunValues]) -> Difference:
        nonlocal num_compared
        num_compared += 1
        return difference(*runs)

    monkeypatch.setattr(module, "difference", counted)
    answer(swept(summary, {(f"{number + 1}ms",): 1.05**number for number in range(60)}, "link.delay"))
    assert num_compared < 8 * 60


def test_noise_alone_is_seldom_called_a_difference(summary: Summary) -> None:
    """Of settings that are equal at most one in twenty, and some: the interval is one of 95 %."""
    num_claims = sum(
        not answer(swept(summary, {("a",): noisy(2 * seed, 0.1), ("b",): noisy(2 * seed + 1, 0.1)}, "fusion"))[
            0
        ].startswith("b cannot be told apart")
        for seed in range(200)
    )
    assert num_claims <= 20
