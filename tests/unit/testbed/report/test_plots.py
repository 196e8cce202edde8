"""The figures hold the run's numbers."""

import itertools
import json
import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pytest

from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.reader import Record
from testbed.record.summary import AggregatorSummary, ChangeSummary, SlotLatency
from testbed.report import plots, vega
from testbed.report.figures import Boxes, Figure, Line, Rules

Make = Callable[..., Record]
FIGURES = (plots.utilization, plots.breakdown, plots.loss, plots.timeline)


def lines(figure: Figure) -> dict[str, Line]:
    return {series.name: series for series in figure.series if isinstance(series, Line)}


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def boxes(figure: Figure) -> dict[str, Boxes]:
    return {series.name: series for series in figure.series if isinstance(series, Boxes)}


def rules(figure: Figure) -> dict[str, Rules]:
    return {series.name: series for series in figure.series if isinstance(series, Rules)}


@pytest.mark.parametrize("make", FIGURES)
def test_nothing_to_draw_is_none(record: Make, make: Callable[[Record], Figure | None]) -> None:
    loaded = record(num_iterations=2)
    assert make(replace(loaded, iterations=loaded.iterations.clear())) is None


def test_few_directions_are_lines_and_many_a_heat_map(record: Make) -> None:
    few = plots.utilization(record(num_iterations=5))
    assert few is not None
    assert list(lines(few))[:2] == ["w0 → s0", "s0 → w0"]
    assert len(rules(few)["starts of iterations"].x) == 5, "one mark for each iteration"
    assert max(known(lines(few)["w0 → s0"].y)) == pytest.approx(98, abs=3), "percent of the link"
    many = plots.utilization(record(num_workers=5, num_iterations=5))
    assert many is not None
    assert lines(many) == {}
    (cells,) = boxes(many).values()
    assert len(many.y.ticks) == 10
    assert {low + 0.48 for low in cells.bottom} == set(range(10))
    busiest = max(range(len(cells.opacity)), key=lambda index: cells.opacity[index])
    assert float(cells.hover[busiest].split()[-5]) / 100 == pytest.approx(
        (cells.opacity[busiest] - 0.04) / 0.96, abs=0.01
    )


def test_a_long_run_is_thinned_without_losing_bytes(record: Make) -> None:
    loaded = record(num_iterations=5)
    start_s = loaded.iterations.filter(pl.col("phase") == "measured")["start_s"].min()
    times = pl.DataFrame({"at_s": [start_s + 0.0003 * tick for tick in range(9001)]})
    row = (
        loaded.links.filter((pl.col("link") == "w0-s0") & (pl.col("node") == "w0")).head(1).drop("at_s", "class_bytes")
    )
    steady = times.join(row, how="cross").with_columns(
        class_bytes=((pl.col("at_s") - start_s) * 50e6 / 8).round().cast(pl.Int64)
    )
    figure = plots.utilization(replace(loaded, links=steady.select(loaded.links.columns)))
    assert figure is not None
    (line,) = lines(figure).values()
    assert len(line.x) <= 2000
    assert all(value == pytest.approx(50, abs=0.1) for value in line.y)


def test_a_heat_map_has_no_more_cells_than_a_browser_draws_at_once(record: Make) -> None:
    figure = plots.utilization(record(num_workers=64, num_iterations=100))
    assert figure is not None
    (cells,) = boxes(figure).values()
    assert 128 * 20 < len(cells.left) <= 5000


def test_the_timeline_shows_every_bucket_of_the_median_iteration(record: Make) -> None:
    loaded = record()
    figure = plots.timeline(loaded)
    assert figure is not None
    drawn = boxes(figure)
    assert len(drawn["bucket in service"].left) == 4 * 4
    assert len(drawn["forward"].left) == 4
    assert min(min(series.left) for series in drawn.values()) == 0, "starts with the first worker"
    ends = [end for series in drawn.values() for end in series.right]
    assert loaded.summary.iteration_time_s is not None
    assert max(ends) == pytest.approx(1e3 * loaded.summary.iteration_time_s.median, rel=0.02)


def test_a_timeline_of_very_many_buckets_is_of_the_first_workers_and_says_so(record: Make) -> None:
    figure = plots.timeline(record(num_workers=16, num_iterations=2, bucket_bytes=(1 << 14,) * 200))
    assert figure is not None
    assert figure.x.title == "milliseconds, the first 9 of 16 workers"
    assert list(figure.y.ticks.values()) == [f"w{rank}" for rank in range(9)]
    assert 3600 < sum(len(series.left) for series in boxes(figure).values()) <= 4000


def test_the_timeline_is_virtual_time(record: Make) -> None:
    slow = record(dilation=10.0, rate_bps=1e9)
    figure = plots.timeline(slow)
    assert figure is not None
    assert slow.summary.iteration_time_s is not None
    ends = [end for series in boxes(figure).values() for end in series.right]
    assert max(ends) == pytest.approx(1e3 * slow.summary.iteration_time_s.median, rel=0.02)


def test_the_breakdown_adds_up_to_the_iteration(record: Make) -> None:
    loaded = record(num_iterations=7)
    figure = plots.breakdown(loaded)
    assert figure is not None
    *drawn, whole = boxes(figure).values()
    for below, above in itertools.pairwise(drawn):
        assert below.top == above.bottom, "one upon the other"
    assert set(drawn[0].bottom) == {0.0}
    totals = drawn[-1].top
    assert totals == whole.top
    assert len(whole.hover) == 7
    assert loaded.summary.iteration_time_s is not None
    assert sorted(known(totals))[3] == pytest.approx(1e3 * loaded.summary.iteration_time_s.median, rel=1e-3)


def test_a_long_runs_breakdown_is_means_and_stays_small(record: Make) -> None:
    loaded = record(num_iterations=5)
    measured = loaded.iterations.filter(pl.col("phase") == "measured")
    times = [
        column for column in measured.columns if column.endswith("_s") and column.split("_")[-2] in ("start", "end")
    ]
    step_s = max(measured["end_s"].to_list()) - min(measured["start_s"].to_list())
    long = pl.concat(
        [
            measured.with_columns(pl.col("index") + 5 * turn, *(pl.col(column) + turn * step_s for column in times))
            for turn in range(401)
        ]
    )
    short_run, long_run = plots.breakdown(loaded), plots.breakdown(replace(loaded, iterations=long))
    assert short_run is not None
    assert long_run is not None
    short, means = boxes(short_run)["compute"], boxes(long_run)["compute"]
    assert len(means.top) == math.ceil(5 * 401 / 6)
    assert long_run.x.title == "measured iteration, means of 6"
    assert statistics.fmean(known(means.top)) == pytest.approx(statistics.fmean(known(short.top)), rel=0.01)
    assert len(json.dumps(vega.on_page(long_run))) < 150_000


def changed(record: Make, **arguments: object) -> Record:
    """w1-s0 has half its rate from the second measured iteration on, in both directions."""
    plain = record(**arguments)
    second_s = plain.iterations.filter((pl.col("phase") == "measured") & (pl.col("index") == 1))["start_s"].min()
    rows = [
        {"at_s": second_s, "link": "w1-s0", "node": node, "to": to, "setting": "rate", "source": "schedule"}
        | {"before": "100mbit", "after": "50mbit", "rate_bps": 50e6}
        for node, to in (("w1", "s0"), ("s0", "w1"))
    ]
    shutil.rmtree(plain.path)
    return record(changes=pl.DataFrame(rows, schema=CHANGE_SCHEMA), **arguments)


def test_a_change_is_a_mark_with_words_and_utilization_is_of_the_rate_in_force(record: Make) -> None:
    before = plots.utilization(record(num_iterations=5))
    loaded = record(num_iterations=5)
    shutil.rmtree(loaded.path)
    figure = plots.utilization(changed(record, num_iterations=5))
    assert figure is not None
    assert before is not None
    assert rules(figure)["changes"].texts == ["w1 ↔ s0: rate 50mbit"]
    assert len(rules(figure)["starts of iterations"].x) == 5
    half, whole = lines(figure)["w1 → s0"].y[-2], lines(before)["w1 → s0"].y[-2]
    assert half == pytest.approx(2 * whole, rel=0.01)


def test_a_changed_rate_is_drawn_beside_what_was_used(record: Make) -> None:
    figure = plots.rates(changed(record, num_iterations=5))
    assert figure is not None
    assert list(lines(figure)) == [
        f"{direction} {what}" for direction in ("w1 → s0", "s0 → w1") for what in ("requested", "used")
    ]
    requested = lines(figure)["w1 → s0 requested"]
    assert (requested.y, requested.step, requested.dash) == ([100, 50, 50], True, "dot")


def test_a_picture_of_changes_says_how_many_of_them_and_of_their_links_it_shows(record: Make) -> None:
    loaded = record(num_workers=5, num_iterations=5)
    start_s = loaded.iterations.filter(pl.col("phase") == "measured")["start_s"].min()
    rows = [
        {"at_s": start_s, "link": link.name, "node": link.from_, "to": link.to, "setting": "rate"}
        | {"source": "schedule", "before": "100mbit", "after": "50mbit", "rate_bps": 50e6}
        for link in loaded.summary.links
    ]
    change = ChangeSummary(
        at_s=0.01, links="w1 → s0", setting="rate", before="1mbit", after="2mbit", source="manual", num_steps=1
    )
    for num_changes, marked in ((30, ""), (31, ", the first 30 of 31 changes")):
        summary = loaded.summary.model_copy(update={"changes": [change] * num_changes})
        shown = replace(loaded, summary=summary, changes=pl.DataFrame(rows, schema=CHANGE_SCHEMA))
        rates, utilization = plots.rates(shown), plots.utilization(shown)
        assert rates is not None
        assert utilization is not None
        assert len(lines(rates)) == 2 * 8
        assert rates.x.title == f"seconds, the first 8 of 10 directions{marked}"
        assert utilization.x.title == f"seconds{marked}"
        assert len(rules(rates)["changes"].x) == 30


def test_without_a_changed_rate_there_is_no_such_figure(record: Make) -> None:
    assert plots.rates(record(num_iterations=3)) is None


def test_the_latency_of_slots_is_a_histogram_of_shares(record: Make) -> None:
    loaded = record()
    assert plots.slot_latency(loaded) is None
    latency = SlotLatency(num_chunks=8, median_s=1.5e-3, p99_s=2e-3, edges_s=[1e-3, 1.5e-3, 2e-3], counts=[6, 2])
    common = {"dataplane": "ebpf", "duplicates": 0, "stale": 0, "bad": 0, "repeated": 0, "retransmitted": 0}
    switches = [AggregatorSummary(name="a0", at="s0", chunks=8, lost=None, slot_latency=latency, **common)]
    figure = plots.slot_latency(replace(loaded, summary=loaded.summary.model_copy(update={"aggregators": switches})))
    assert figure is not None
    (line,) = [each for each in figure.series if isinstance(each, Line)]
    assert line.step
    assert list(zip(line.x, line.y, strict=True)) == [(1.0, 0.0), (1.0, 75.0), (1.5, 25.0), (2.0, 0.0), (2.0, 0.0)]
    (rules,) = [each for each in figure.series if isinstance(each, Rules)]
    assert list(zip(rules.x, rules.texts, strict=True)) == [(1.5, "median"), (2.0, "99 %")]
    low, high = figure.domain("x")
    assert low < 1.0 < 2.0 < high
    silent = [switches[0].model_copy(update={"slot_latency": None})] * 8
    for others, among in (([], ""), (switches * 9, ", the first 8 of 10 aggregators")):
        aggregators = [*silent, *switches, *others]
        figure = plots.slot_latency(
            replace(loaded, summary=loaded.summary.model_copy(update={"aggregators": aggregators}))
        )
        assert figure is not None, "those that say nothing are not counted"
        assert figure.x.title == f"milliseconds{among}"


def test_loss_is_over_the_time_that_training_took(record: Make) -> None:
    loaded = record(num_iterations=9)
    figure = plots.loss(loaded)
    assert figure is not None
    warmup, measured = lines(figure)["warm-up"], lines(figure)["measured"]
    assert (len(warmup.x), len(measured.x)) == (3, 9)
    assert loaded.summary.loss is not None
    assert measured.y[-1] == pytest.approx(loaded.summary.loss.last, rel=1e-5)
    assert loaded.summary.iteration_time_s is not None
    spent_s = measured.x[-1] - warmup.x[-1]
    assert spent_s == pytest.approx(9 * loaded.summary.iteration_time_s.mean, rel=1e-3)
