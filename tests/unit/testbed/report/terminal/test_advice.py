"""Advice in words."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from testbed.report.terminal.advice import (
    advice_json,
    fusion_text,
    headline,
    picture,
    price,
    render_advice,
    render_trace,
    render_verification,
)
from testbed.theory.advise import Setting, Verification, advise
from testbed.theory.buckets import ByTime
from testbed.traces.derived import derived_table
from testbed.traces.table import Layer, LayerTable

TODAY = Setting(table=derived_table("resnet50"), num_workers=32, rate_bps=10e9, efficiency=0.8)


def printed(render: Callable[..., None], *arguments: object) -> str:
    out = StringIO()
    render(*arguments, Console(file=out, width=200))
    return out.getvalue()


def test_the_headline_names_the_least_change() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    first, second = headline(advice)
    assert first == "Not enough: 32 workers on 10 Gbit/s links scale to 42.1 %, not to 90.0 %."
    assert second.startswith("Least to change: links of 40 Gbit/s; then 97")


def test_the_headline_says_with_what_rate_it_would_do() -> None:
    (sentence,) = headline(advise(replace(TODAY, rate_bps=100e9), 0.9, max_efficiency=0.956))
    assert sentence.startswith("Enough: 32 workers on 100 Gbit/s links scale to ")
    assert sentence.endswith("Gbit/s would do.")


def test_the_headline_says_what_is_best_where_nothing_is_enough() -> None:
    far = replace(TODAY, latency_s=100.0)
    advice = advise(far, 0.99, max_efficiency=0.956)
    changes = tuple(change._replace(sufficient=False) for change in advice.changes)
    (sentence,) = headline(replace(advice, changes=changes))
    assert "and no single change is enough. The most is" in sentence


def test_every_change_has_a_price_in_its_own_unit() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    text = printed(render_advice, advice, "resnet50")
    for change in advice.changes:
        assert price(change, TODAY) in text
    assert "Predicted, not measured" in text
    units = {change.name: price(change, TODAY) for change in advice.changes}
    assert units["transport"] == "a transport that fills 95.6 % of a link, not 80.0 %"
    assert units["aggregation"] == "a switch that aggregates, 128 slots"
    assert units["interval"].startswith("averaging every 19 iterations")


def test_the_optimizer_s_step_is_as_long_for_every_batch() -> None:
    table = LayerTable(layers=(Layer("a", 0.01, 0.02, 4 * 10**6),), update_s=0.05)
    large = Setting(table=table, num_workers=4, rate_bps=1e9, batch_factor=8)
    text = printed(render_advice, advise(large, 0.9, max_efficiency=0.956), "mine")
    assert "mine: 290 ms of computing an iteration" in text


def test_fusion_is_said_in_words() -> None:
    assert fusion_text(TODAY) == "what is ready every 5 ms"
    assert fusion_text(replace(TODAY, fusion=ByTime(cycle_s=0))) == "every gradient by itself"
    assert fusion_text(replace(TODAY, fusion=ByTime(cycle_s=float("inf")))) == "buckets of 67.1 MB"


def test_json_is_marked_as_predicted_and_has_every_change() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    reported = advice_json(advice, "resnet50")
    assert reported["kind"] == "predicted"
    assert reported["recommended"] == "links"
    assert [each["change"] for each in reported["changes"]] == [change.name for change in advice.changes]
    assert reported["today"]["scaling_factor"] == TODAY.scaling_factor


VERIFIED = Verification(
    predicted=0.95,
    target=0.9,
    measured=0.93,
    missing=None,
    outcome="valid",
    reasons=(),
    dilation=20.0,
    record="results/advice-1",
)


def test_a_verification_says_how_far_off_the_advice_was() -> None:
    text = printed(render_verification, VERIFIED)
    assert (
        "Measured in emulation (valid, time 20 times slower): 93.0 %, 2.0 points less than predicted; meets 90" in text
    )
    assert "results/advice-1" in text
    missed = printed(render_verification, replace(VERIFIED, measured=0.87, outcome="degraded", reasons=("steal",)))
    assert "8.0 points less than predicted; misses 90" in missed
    assert "  steal" in missed
    nearly = printed(render_verification, replace(VERIFIED, predicted=0.9001, measured=0.899))
    assert "0.1 points less than predicted; is within 2 points of 90.0 %." in nearly
    assert "1.0 points more" in printed(render_verification, replace(VERIFIED, measured=0.96))


def test_a_verification_without_a_number_says_why() -> None:
    text = printed(render_verification, replace(VERIFIED, measured=None, missing="computing was late"))
    assert "Not verified: computing was late" in text
    verified = advice_json(advise(TODAY, 0.9, max_efficiency=0.956), "resnet50", VERIFIED)["verified"]
    assert (verified["reached"], verified["error"]) == (True, pytest.approx(0.02))
    assert verified["tolerance"] == 0.02


def test_a_trace_shows_the_largest_layers_in_their_order_and_what_was_recorded() -> None:
    layers = tuple(Layer(f"l{number}", 0.001, 0.002, number * 1000, 0.5) for number in range(20))
    text = printed(render_trace, LayerTable(layers=layers), "mine", "manually")
    assert "the 12 of 20 layers with the largest gradients" in text
    assert [f" l{number} " in text for number in range(20)] == [number >= 8 for number in range(20)]
    assert "exchanged in" in text
    assert "exchanged in" not in printed(render_trace, derived_table("alexnet"), "alexnet", "derived")


def test_a_picture_shows_when_in_backward_how_many_bytes_become_ready() -> None:
    table = LayerTable(layers=(Layer("front", 0.01, 0.02, 100), Layer("back", 0.01, 0.02, 800)))
    bytes_ready, line, legend = picture(table)
    assert line == "─" * 24 + "━" * 48
    assert {column: level for column, level in enumerate(bytes_ready) if level != " "} == {48: "█", 71: "▁"}
    assert "forward 20 ms" in legend
    assert "800 B" in legend
    assert picture(LayerTable(layers=(Layer("x", 0.0, 0.0, 4),))) == []
