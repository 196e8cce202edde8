"""The sentences of a sweep: right about who is fastest, from where on, and silent where there is nothing to say."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.record.reader import Record
from testbed.record.summary import Summary
from testbed.report.comparison.answer import answer
from testbed.report.comparison.points import ComparedPoint, Comparison


@pytest.fixture
def summary(record: Callable[..., Record]) -> Summary:
    return record().summary


def taking(summary: Summary, time_s: float) -> Summary:
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    update = {"iteration_time_s": quantiles.model_copy(update={"mean": time_s}), "exposed_communication_s": 0.04}
    return summary.model_copy(update=update)


def swept(summary: Summary, times_s: Mapping[tuple[Any, ...], float | None], *paths: str) -> Comparison:
    points = tuple(
        ComparedPoint(
            settings=dict(zip(paths, values, strict=True)),
            spec_sha256="ab",
            bound_s=0.1,
            schedule_bound_s=0.1,
            predicted_s=0.1,
            num_requested=1,
            runs=() if time_s is None else (taking(summary, time_s),),
        )
        for values, time_s in times_s.items()
    )
    return Comparison(name="x", axes=tuple((path,) for path in paths), points=points, directory=Path())


def test_a_quantity_is_enough_where_more_brings_less_than_a_tenth(summary: Summary) -> None:
    times_s = {("400mbit",): 0.100, ("25mbit",): 0.8, ("200mbit",): 0.105, ("100mbit",): 0.2}
    (sentence,) = answer(swept(summary, times_s, "link.rate"))
    assert sentence == (
        "From 25mbit to 200mbit an iteration becomes 7.62 times as fast (800 ms, 105 ms); what lies beyond, up to "
        "400mbit, brings less than 10 % more (100 ms). At 400mbit 40 % of an iteration waits for communication."
    )


def test_a_quantity_that_harms_is_distinguished_from_its_harmful_end(summary: Summary) -> None:
    (sentence,) = answer(swept(summary, {("0ms",): 0.1, ("2ms",): 0.2, ("10ms",): 0.8}, "link.delay"))
    assert sentence.startswith("From 10ms to 0ms an iteration becomes 8 times as fast")
    assert "every step of link.delay counts." in sentence


def test_a_quantity_without_effect_is_said_to_have_none(summary: Summary) -> None:
    (sentence,) = answer(swept(summary, {("0ms",): 0.1, ("2ms",): 0.104}, "link.delay"))
    assert sentence.startswith("link.delay hardly matters here: 104 ms at 2ms, 100 ms at 0ms.")


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ({"none": 0.58, "layers": 0.4, "priority": 0.36}, "priority is the fastest with 360 ms, 1.61 times as fast"),
        ({"none": 0.1, "layers": 0.099, "merged": 0.3}, "Nothing is faster than none (100 ms)"),
        ({"none": 0.1, "layers": 0.101}, "All are as fast as none (100 ms)."),
    ],
)
def test_names_are_compared_with_the_first(summary: Summary, times_s: dict[str, float], expected: str) -> None:
    (sentence,) = answer(swept(summary, {(name,): time_s for name, time_s in times_s.items()}, "fusion"))
    assert sentence.startswith(expected)


def test_several_along_a_quantity_tell_who_is_fastest_where_and_who_pays(summary: Summary) -> None:
    none, fp16, int8, top_k = "none", "fp16", "int8", "top_k"
    times_s: dict[tuple[Any, ...], float | None] = {
        ("25mbit", none): 0.8,
        ("25mbit", fp16): 0.4,
        ("25mbit", int8): 0.9,
        ("25mbit", top_k): 0.1,
        ("100mbit", none): 0.2,
        ("100mbit", fp16): 0.15,
        ("100mbit", int8): 0.3,
        ("100mbit", top_k): 0.1,
        ("400mbit", none): 0.1,
        ("400mbit", fp16): 0.099,
        ("400mbit", int8): 0.3,
        ("400mbit", top_k): None,
    }
    best, pays, unknown = answer(swept(summary, times_s, "link.rate", "compression"))
    assert best == (
        "At 25mbit and 100mbit top_k is the fastest, 8 and 2 times as fast as none; "
        "at 400mbit nothing is faster than none."
    )
    assert pays == "Faster than none at 25mbit and 100mbit: fp16, top_k; nowhere: int8."
    assert unknown == "No result stands at 400mbit: top_k."


def test_everywhere_is_only_where_all_have_a_result(summary: Summary) -> None:
    times_s = {("25mbit", "none"): 0.8, ("25mbit", "fp16"): 0.4, ("1gbit", "none"): 0.1, ("1gbit", "fp16"): None}
    assert answer(swept(summary, times_s, "link.rate", "compression")) == [
        "At 25mbit fp16 is the fastest, 2 times as fast as none.",
        "Faster than none at 25mbit: fp16.",
        "No result stands at 1gbit: fp16.",
    ]


def test_what_has_no_result_is_not_spoken_of(summary: Summary) -> None:
    assert answer(swept(summary, {("none",): None, ("layers",): 0.4}, "fusion")) == []
    assert answer(swept(summary, {("1mbit", "none"): 0.4, ("2mbit", "fp16"): 0.4}, "link.rate", "compression")) == []


def test_who_has_no_result_at_all_is_named_among_several(summary: Summary) -> None:
    times_s = {
        ("1ms", "ring"): 0.8,
        ("1ms", "tree"): 0.9,
        ("1ms", "auto"): None,
        ("2ms", "ring"): 0.9,
        ("2ms", "auto"): None,
    }
    *_, unknown = answer(swept(summary, times_s, "link.delay", "collective"))
    assert unknown == "No result stands at 2ms: tree; anywhere: auto."


def test_of_what_is_nowhere_faster_it_is_said_how_much_slower(summary: Summary) -> None:
    times_s = {
        ("0.1%", "in_network"): 2.0,
        ("0.1%", "ring"): 3.0,
        ("0.1%", "gloo"): 3.2,
        ("1%", "in_network"): 2.0,
        ("1%", "ring"): 3.5,
        ("1%", "gloo"): 3.2,
    }
    assert answer(swept(summary, times_s, "link.loss", "collective")) == [
        "At 0.1% and 1% nothing is faster than in_network.",
        "ring takes 1.5 to 1.75 times as long and gloo takes 1.6 times as long.",
    ]
