"""Measured points and their theory: valid plotly, one line for each combination, units that a person reads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from testbed.record.reader import Record
from testbed.record.summary import PredictionSummary, Summary
from testbed.report.comparison import plots
from testbed.report.comparison.points import ComparedPoint, Comparison

FIGURES = (plots.iteration, plots.allreduce, plots.scaling, plots.breakdown)
RATES, COMPRESSIONS = ("10mbit", "1gbit", "100mbit"), ("none", {"kind": "top_k", "ratio": "1%"})
NUMERIC = [{"link.rate": rate, "compression": compression} for rate in RATES for compression in COMPRESSIONS]
TOGETHER = [{"collective": "ring", "stack": stack} for stack in (None, "gloo")]


@pytest.fixture
def summary(record: Callable[..., Record]) -> Summary:
    return record().summary


def comparison(settings: list[dict[str, Any]], *runs: Summary, axes: tuple[tuple[str, ...], ...] = ()) -> Comparison:
    points = tuple(
        ComparedPoint(
            settings=each,
            spec_sha256="ab",
            bound_s=0.5,
            schedule_bound_s=0.5,
            predicted_s=0.6,
            num_requested=1,
            runs=runs,
        )
        for each in settings
    )
    return Comparison(name="x", axes=axes or tuple((path,) for path in settings[0]), points=points, directory=Path())


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("settings", [NUMERIC, TOGETHER, [{"compression": each} for each in COMPRESSIONS], [{}]])
def test_plotly_accepts_every_property(
    summary: Summary, make: Callable[[Comparison], Any], settings: list[dict[str, Any]]
) -> None:
    go.Figure(**make(comparison(settings, summary)))
    assert make(comparison(settings)) is None, "nothing measured is nothing to draw"


def test_the_first_quantity_that_varies_is_the_horizontal_axis_with_its_values_as_written(summary: Summary) -> None:
    for settings in (NUMERIC, [dict(reversed(each.items())) for each in NUMERIC]):
        figure = plots.allreduce(comparison(settings, summary))
        assert figure is not None
        axis = figure["layout"]["xaxis"]
        assert (axis["type"], axis["ticktext"], axis["tickvals"]) == ("log", list(RATES), [1e7, 1e9, 1e8])
        lines = [trace for trace in figure["data"] if trace["x"] != [None]]
        assert [trace["x"] for trace in lines] == [[1e7, 1e8, 1e9]] * 6, "in the order of the numbers"
        assert {trace["name"] for trace in lines} == {"none", "top_k(ratio=1%)"}
        assert sorted(trace["line"].get("dash", "") for trace in lines) == ["", "", "dash", "dash", "dot", "dot"]


def with_prediction(summary: Summary) -> Summary:
    said = PredictionSummary(
        iteration_time_s=0.9,
        missing=None,
        iteration_error=0.01,
        allreduce_error=0.02,
        expected_error=None,
        expected_error_source=None,
        num_points=0,
        outside=[],
        fitted_at=None,
    )
    return summary.model_copy(update={"prediction": said})


@pytest.mark.parametrize("make", [plots.iteration, plots.allreduce, plots.scaling])
@pytest.mark.parametrize("settings", [NUMERIC, TOGETHER])
def test_predicted_and_measured_are_never_drawn_alike(
    summary: Summary, make: Callable[[Comparison], Any], settings: list[dict[str, Any]]
) -> None:
    traces = make(comparison(settings, with_prediction(summary)))["data"]
    drawn: dict[bool, set[bool]] = {True: set(), False: set()}
    for trace in traces:
        named = trace["name"] if trace["x"] == [None] else trace["hovertemplate"]
        if "predicted" in named or "measured" in named:
            hollow = "-open" in str(trace.get("marker", {}).get("symbol", ""))
            drawn["predicted" in named].add(hollow)
    assert drawn == {True: {True}, False: {False}}, "hollow, or filled"


@pytest.mark.parametrize("make", [plots.iteration, plots.allreduce, plots.scaling])
def test_degraded_points_are_hollow_and_no_others(summary: Summary, make: Callable[[Comparison], Any]) -> None:
    degraded = summary.model_copy(update={"outcome": "degraded", "reasons": ["because"]})

    def drawn(settings: list[dict[str, Any]], **axes: Any) -> list[dict[str, Any]]:
        whole = comparison(settings, summary, **axes)
        points = (replace(whole.points[0], runs=(degraded,)), *whole.points[1:])
        figure = make(replace(whole, points=points))
        go.Figure(**figure)
        assert "degraded: hollow" in [trace["name"] for trace in figure["data"]]
        assert "degraded: hollow" not in [trace["name"] for trace in make(whole)["data"]]
        return [trace for trace in figure["data"] if ", measured, " in trace.get("hovertemplate", "")]

    (line,) = drawn([{"link.rate": rate} for rate in ("1mbit", "2mbit", "4mbit")])
    assert line["marker"]["symbol"] == ["circle-open", "circle", "circle"]
    assert line["customdata"] == ["1mbit (degraded)", "2mbit", "4mbit"]
    (bars,) = drawn(TOGETHER, axes=(("collective", "stack"),))
    first, second = bars["marker"]["color"]
    assert first == "rgba(0,0,0,0)"
    assert second == bars["marker"]["line"]["color"]
    assert bars["marker"]["line"]["width"] == [2, 0]


def test_the_parts_of_a_degraded_points_iteration_are_called_so(summary: Summary) -> None:
    degraded = summary.model_copy(update={"outcome": "degraded", "reasons": ["because"]})
    figure = plots.breakdown(comparison([{"seed": 1}, {"seed": 2}], degraded))
    assert figure is not None
    assert figure["data"][0]["y"] == ["1 (degraded)", "2 (degraded)"]


def test_what_varies_together_is_one_axis_of_names(summary: Summary) -> None:
    figure = plots.allreduce(comparison(TOGETHER, summary, axes=(("collective", "stack"),)))
    assert figure is not None
    assert [trace["x"] for trace in figure["data"] if trace["type"] == "bar"] == [["ring", "ring gloo"]]
    assert figure["layout"]["xaxis"]["title"]["text"] == "collective, stack"


def test_theory_of_an_iteration_lies_around_computing_and_the_bound(summary: Summary) -> None:
    figure = plots.iteration(comparison([{"seed": 1}, {"seed": 2}], summary))
    assert figure is not None
    assert summary.compute_only_time_s is not None
    assert summary.allreduce is not None
    most, least = (trace["y"][0] / 1e3 for trace in figure["data"] if "dash" in trace["line"] and trace["x"] != [None])
    assert most == pytest.approx(summary.compute_only_time_s + summary.allreduce.predicted_s, rel=1e-4)
    assert least == pytest.approx(max(summary.compute_only_time_s, summary.allreduce.bound_s), rel=1e-4)


def test_names_of_places_are_broken_into_lines_and_every_line_of_the_legend_has_room(summary: Summary) -> None:
    settings: list[dict[str, Any]] = [
        {"collective": "ring", "stack": "gloo"},
        {"collective": {"kind": "tree", "chunk": "1MiB"}, "stack": None},
    ]
    figure = plots.iteration(comparison(settings, summary, axes=(("collective", "stack"),)))
    assert figure is not None
    assert {trace["offsetgroup"] for trace in figure["data"]} == {"all"}, "theory stands on its bar"
    axis = figure["layout"]["xaxis"]
    assert axis["tickvals"] == ["ring gloo", "tree(chunk=1MiB)"]
    assert axis["ticktext"] == ["ring<br>gloo", "tree<br>(chunk=1MiB)"]
    many: list[dict[str, Any]] = [
        {"compression": kind, "seed": str(seed)} for kind in ("none", "fp16", "int8", "top_k") for seed in (1, 2)
    ]
    taller = plots.iteration(comparison(many, summary))
    assert taller is not None
    assert taller["layout"]["height"] > figure["layout"]["height"]


def test_a_logarithmic_axis_has_whole_numbers(summary: Summary) -> None:
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    points = tuple(
        ComparedPoint(
            settings={"link.rate": rate},
            spec_sha256="ab",
            bound_s=0.1,
            schedule_bound_s=0.1,
            predicted_s=0.1,
            num_requested=1,
            runs=(summary.model_copy(update={"iteration_time_s": quantiles.model_copy(update={"mean": time_s})}),),
        )
        for rate, time_s in (("10mbit", 2.5), ("1gbit", 0.2))
    )
    figure = plots.iteration(Comparison(name="x", axes=(("link.rate",),), points=points, directory=Path()))
    assert figure is not None
    axis = figure["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert {"200": 200.0, "1000": 1000.0, "2000": 2000.0}.items() <= dict(
        zip(axis["ticktext"], axis["tickvals"], strict=True)
    ).items()
