"""Advice in words."""

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from testbed.record.number_text import digits
from testbed.report.terminal.advice import (
    advice_json,
    compressors_text,
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

SOURCE = "derived, batch 32; V100"


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
    text = printed(render_advice, advice, "resnet50", SOURCE)
    for change in advice.changes:
        assert price(change, TODAY) in text
    assert "Predicted, not measured" in text
    units = {change.name: price(change, TODAY) for change in advice.changes}
    assert units["transport"] == "a transport that fills 95.6 % of a link, not 80.0 %"
    assert units["aggregation"] == "a switch that aggregates, 128 slots"
    assert units["interval"].startswith("averaging every 19 iterations")


def test_a_compression_s_price_is_of_the_bytes_on_the_links() -> None:
    """A payload of terngrad, 16 times as small, is gathered, and 32 workers' links carry what they did without."""
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    (compression,) = (change for change in advice.changes if change.name == "compression")
    text = price(compression, TODAY)
    assert "x of the bytes on the links" in text
    assert f"(payloads that are gathered: {digits(16 * compression.setting.compression_ratio)} x)" in text
    (reported,) = (
        each for each in advice_json(advice, "resnet50", SOURCE)["changes"] if each["change"] == "compression"
    )
    assert reported["gathered_compression_ratio"] == pytest.approx(16 * reported["compression_ratio"])


def test_shipped_compressors_that_leave_so_few_bytes_are_named() -> None:
    """At 32 workers terngrad's ternary digits, which are gathered, do not."""
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    named = advice_json(advice, "resnet50", SOURCE)["compressors"]
    assert {"int8", "powersgd"} <= set(named)
    assert not {"fp16", "terngrad", "qsgd"} & set(named)
    assert "int8 3.94 x" in " ".join(printed(render_advice, advice, "resnet50", SOURCE).split())
    assert compressors_text(advise(replace(TODAY, rate_bps=1e11), 0.9, max_efficiency=0.956)) == ""


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found.group(1))


@pytest.mark.parametrize(
    ("num_workers", "rate_bps", "latency_s"), [(32, 20e9, 20e-6), (4, 5e9, 0.0), (32, 5e9, 0.0), (8, 10e9, 50e-6)]
)
def test_what_is_printed_of_a_least_is_enough(num_workers: int, rate_bps: float, latency_s: float) -> None:
    today = replace(TODAY, num_workers=num_workers, rate_bps=rate_bps, latency_s=latency_s, efficiency=0.95)
    advice = advise(today, 0.9, max_efficiency=0.956)
    prices = {change.name: price(change, today) for change in advice.changes}
    compression_ratio = number(prices["compression"], r"compression ([\d.]+) x")
    assert replace(today, compression_ratio=compression_ratio).scaling_factor >= 0.9
    batch_factor = number(prices["batch"], r"batches ([\d.]+) x")
    assert replace(today, batch_factor=batch_factor).scaling_factor >= 0.9


@pytest.mark.parametrize("target", [0.5, 0.9, 0.95])
def test_the_rate_that_would_do_does_as_printed(target: float) -> None:
    today = Setting(table=derived_table("bert_base"), num_workers=16, rate_bps=4e11, efficiency=0.95)
    (sentence,) = headline(advise(today, target, max_efficiency=0.956))
    least_bps = 1e9 * number(sentence, r"([\d.]+) Gbit/s would do")
    assert replace(today, rate_bps=least_bps).scaling_factor >= target


def test_a_share_just_below_the_target_reads_as_below_it() -> None:
    target = TODAY.scaling_factor + 1e-5
    first, *_ = headline(advise(TODAY, target, max_efficiency=0.956))
    assert number(first, r"scale to ([\d.]+) %") < number(first, r"not to ([\d.]+) %")
    assert "not to 99.99 %." in headline(advise(TODAY, 0.9999, max_efficiency=0.956))[0]
    missed = printed(render_verification, replace(VERIFIED, measured=0.89996))
    assert "90.00 %" not in missed
    assert "(valid, time 20 times slower): 89.996 %" in missed


def test_the_optimizer_s_step_is_as_long_for_every_batch() -> None:
    table = LayerTable(layers=(Layer("a", 0.01, 0.02, 4 * 10**6),), update_s=0.05)
    large = Setting(table=table, num_workers=4, rate_bps=1e9, batch_factor=8)
    text = printed(render_advice, advise(large, 0.9, max_efficiency=0.956), "mine", SOURCE)
    assert "mine: 290 ms of computing an iteration, 4 MB" in text
    read = replace(large, table=replace(table, input_s=0.02, host_to_device_s=0.005))
    advice = advise(read, 0.9, max_efficiency=0.956)
    text = printed(render_advice, advice, "mine", SOURCE)
    assert "mine: 290 ms of computing an iteration, 200 ms of reading and copying its input meanwhile, 4 MB" in text
    assert advice_json(advice, "mine", SOURCE)["today"]["alone_s"] == read.alone_s


def test_fusion_is_said_in_words() -> None:
    assert fusion_text(TODAY) == "what is ready every 5 ms"
    assert fusion_text(replace(TODAY, fusion=ByTime(cycle_s=0))) == "every gradient by itself"
    assert fusion_text(replace(TODAY, fusion=ByTime(cycle_s=float("inf")))) == "buckets of 67.1 MB"


def test_json_is_marked_as_predicted_and_has_every_change() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    reported = advice_json(advice, "resnet50", SOURCE)
    assert reported["kind"] == "predicted"
    assert reported["recommended"] == "links"
    assert [each["change"] for each in reported["changes"]] == [change.name for change in advice.changes]
    assert reported["today"]["scaling_factor"] == TODAY.scaling_factor


def test_what_the_answer_rests_on_is_said() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=0.956)
    text = printed(render_advice, advice, "resnet50", SOURCE)
    assert f"Computing: {SOURCE}. Not in the trace, so not counted: the optimizer's step." in text
    assert "x as large, computed in proportion" in text
    reported = advice_json(advice, "resnet50", SOURCE)
    assert (reported["source"], reported["batch_size"]) == (SOURCE, 32)
    assert reported["size_bytes"] == TODAY.table.size_bytes
    assert {"codecs", "losses", "the optimizer's step"} < set(reported["not_counted"])
    assert (reported["today"]["collective"], reported["today"]["compute_s"]) == ("ring", TODAY.compute_s)
    (aggregated,) = (each for each in reported["changes"] if each["change"] == "aggregation")
    assert aggregated["collective"] == "in_network"
    updated = advise(replace(TODAY, table=replace(TODAY.table, update_s=0.01)), 0.9, max_efficiency=0.956)
    assert "Not in the trace" not in printed(render_advice, updated, "resnet50", SOURCE)


def test_a_trace_without_a_forward_pass_is_said_to_be_incomplete_where_that_may_decide() -> None:
    layers = tuple(layer._replace(forward_s=0.0) for layer in TODAY.table.layers)
    today = replace(TODAY, table=replace(TODAY.table, layers=layers))
    advice = advise(today, 0.9, max_efficiency=0.956)
    assert "The trace has no forward pass" in headline(advice)[-1]
    assert "the forward pass, the optimizer's step" in printed(render_advice, advice, "resnet50", SOURCE)
    assert "the forward pass" in advice_json(advice, "resnet50", SOURCE)["not_counted"]
    assert "--iteration" not in "".join(headline(advise(replace(today, rate_bps=1e11), 0.5, max_efficiency=0.956)))
    assert "no forward pass" not in "".join(headline(advise(TODAY, 0.9, max_efficiency=0.956)))


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
    verified = advice_json(advise(TODAY, 0.9, max_efficiency=0.956), "resnet50", SOURCE, VERIFIED)["verified"]
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
