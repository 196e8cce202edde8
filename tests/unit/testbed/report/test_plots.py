"""The figures are valid plotly and hold the run's numbers."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import plotly.graph_objects as go
import polars as pl
import pytest

from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.reader import Record
from testbed.report import plots

Make = Callable[..., Record]
FIGURES = (plots.utilization, plots.breakdown, plots.loss, plots.timeline)


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("num_workers", [2, 16])
def test_plotly_accepts_every_property(
    record: Make, make: Callable[[Record], plots.Figure | None], num_workers: int
) -> None:
    figure = make(record(num_workers=num_workers, num_iterations=5))
    assert figure is not None
    go.Figure(**figure)  # raises for a property that does not exist or a value it does not take


@pytest.mark.parametrize("make", FIGURES)
def test_nothing_to_draw_is_none(record: Make, make: Callable[[Record], plots.Figure | None]) -> None:
    loaded = record(num_iterations=2)
    assert make(replace(loaded, iterations=loaded.iterations.clear())) is None


def test_few_directions_are_lines_and_many_a_heat_map(record: Make) -> None:
    few = plots.utilization(record(num_iterations=5))
    assert few is not None
    assert [trace["name"] for trace in few["data"]][:2] == ["w0 → s0", "s0 → w0"]
    assert len(few["layout"]["shapes"]) == 5, "one mark for each iteration"
    assert max(few["data"][0]["y"]) == pytest.approx(98, abs=3), "percent of the link"
    many = plots.utilization(record(num_workers=5, num_iterations=5))
    assert many is not None
    assert [trace["type"] for trace in many["data"]] == ["heatmap"]
    assert len(many["data"][0]["z"]) == 10


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
    (trace,) = figure["data"]
    assert len(trace["x"]) <= 2000
    assert all(value == pytest.approx(50, abs=0.1) for value in trace["y"])


def test_the_timeline_shows_every_bucket_of_the_median_iteration(record: Make) -> None:
    loaded = record()
    figure = plots.timeline(loaded)
    assert figure is not None
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert len(traces["bucket in service"]["x"]) == 4 * 4
    assert len(traces["forward"]["x"]) == 4
    assert min(min(trace["base"]) for trace in traces.values()) == 0, "starts with the first worker"
    ends = [base + x for trace in traces.values() for base, x in zip(trace["base"], trace["x"], strict=True)]
    assert loaded.summary.iteration_time_s is not None
    assert max(ends) == pytest.approx(1e3 * loaded.summary.iteration_time_s.median, rel=0.02)


def test_the_timeline_is_virtual_time(record: Make) -> None:
    slow = record(dilation=10.0, rate_bps=1e9)
    figure = plots.timeline(slow)
    assert figure is not None
    assert slow.summary.iteration_time_s is not None
    ends = [base + x for trace in figure["data"] for base, x in zip(trace["base"], trace["x"], strict=True)]
    assert max(ends) == pytest.approx(1e3 * slow.summary.iteration_time_s.median, rel=0.02)


def test_the_breakdown_adds_up_to_the_iteration(record: Make) -> None:
    loaded = record(num_iterations=7)
    figure = plots.breakdown(loaded)
    assert figure is not None
    totals = [sum(parts) for parts in zip(*(trace["y"] for trace in figure["data"]), strict=True)]
    assert loaded.summary.iteration_time_s is not None
    assert sorted(totals)[3] == pytest.approx(1e3 * loaded.summary.iteration_time_s.median, rel=1e-3)


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


def test_a_change_is_a_mark_with_words_and_utilisation_is_of_the_rate_in_force(record: Make) -> None:
    before = plots.utilization(record(num_iterations=5))
    loaded = record(num_iterations=5)
    shutil.rmtree(loaded.path)
    figure = plots.utilization(changed(record, num_iterations=5))
    assert figure is not None
    assert before is not None
    (mark,) = figure["layout"]["annotations"]
    assert mark["text"] == "w1 ↔ s0: rate 50mbit"
    assert len(figure["layout"]["shapes"]) == 6
    half = {trace["name"]: trace for trace in figure["data"]}["w1 → s0"]
    whole = {trace["name"]: trace for trace in before["data"]}["w1 → s0"]
    assert half["y"][-2] == pytest.approx(2 * whole["y"][-2], rel=0.01)
    go.Figure(**figure)


def test_a_changed_rate_is_drawn_beside_what_was_used(record: Make) -> None:
    figure = plots.rates(changed(record, num_iterations=5))
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == [
        f"{direction} {what}" for direction in ("w1 → s0", "s0 → w1") for what in ("requested", "used")
    ]
    assert figure["data"][0]["y"] == [100, 50, 50]
    go.Figure(**figure)


def test_without_a_changed_rate_there_is_no_such_figure(record: Make) -> None:
    assert plots.rates(record(num_iterations=3)) is None
