"""Measured points and their theory: one line for each combination, units that a person reads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.record.summary import CommandSummary, PredictionSummary, Summary, SynchronisationSummary
from testbed.report.comparison import plots
from testbed.report.comparison.points import Comparison
from testbed.report.figures import Boxes, Figure, Line, Marks
from tests.compared import compared_point

FIGURES = (plots.iteration, plots.allreduce, plots.scaling, plots.breakdown)
RATES, COMPRESSIONS = ("10mbit", "1gbit", "100mbit"), ("none", {"kind": "top_k", "ratio": "1%"})
NUMERIC = [{"link.rate": rate, "compression": compression} for rate in RATES for compression in COMPRESSIONS]
TOGETHER = [{"collective": "ring", "stack": stack} for stack in (None, "gloo")]


def comparison(settings: list[dict[str, Any]], *runs: Summary, axes: tuple[tuple[str, ...], ...] = ()) -> Comparison:
    points = tuple(compared_point(each, *runs) for each in settings)
    return Comparison(name="x", axes=axes or tuple((path,) for path in settings[0]), points=points, directory=Path())


def lines(figure: Figure) -> list[Line]:
    """Without those that only explain in the legend."""
    return [series for series in figure.series if isinstance(series, Line) and len(series.x)]


def marks(figure: Figure) -> list[Marks]:
    return [series for series in figure.series if isinstance(series, Marks) and len(series.x)]


def boxes(figure: Figure) -> list[Boxes]:
    return [series for series in figure.series if isinstance(series, Boxes)]


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("settings", [NUMERIC, TOGETHER, [{"compression": each} for each in COMPRESSIONS], [{}]])
def test_nothing_measured_is_nothing_to_draw(
    summary: Summary, make: Callable[[Comparison], Figure | None], settings: list[dict[str, Any]]
) -> None:
    assert make(comparison(settings, summary)) is not None
    assert make(comparison(settings)) is None


def test_the_first_quantity_that_varies_is_the_horizontal_axis_with_its_values_as_written(summary: Summary) -> None:
    for settings in (NUMERIC, [dict(reversed(each.items())) for each in NUMERIC]):
        figure = plots.allreduce(comparison(settings, summary))
        assert figure is not None
        assert figure.x.log
        assert figure.x.ticks == {1e7: "10mbit", 1e9: "1gbit", 1e8: "100mbit"}
        assert [line.x for line in lines(figure)] == [[1e7, 1e8, 1e9]] * 6, "in the order of the numbers"
        assert {line.name for line in lines(figure)} == {"none", "top_k(ratio=1%)"}
        assert sorted(line.dash for line in lines(figure)) == ["", "", "dash", "dash", "dot", "dot"]
        assert lines(figure)[2].hidden_by == ("none", "bound"), "its group's entry hides it, and that of all bounds"


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
    figure = make(comparison(settings, with_prediction(summary)))
    drawn: dict[str, set[Any]] = {}
    for series in figure.series:
        if isinstance(series, Marks | Boxes) and (isinstance(series, Boxes) or len(series.x)):
            for text in series.hover[:1]:
                kind = text.partition("\n")[0].rpartition(", ")[2]
                drawn.setdefault(kind, set()).add(getattr(series, "hollow", False) is True)
    assert drawn["predicted"] == {True}, "hollow"
    assert drawn["measured"] == {False}, "filled"
    assert {series.name: series.hollow for series in figure.legend if series.name == "predicted"} == {"predicted": True}


def test_theory_of_an_iteration_has_its_share_of_an_exchange_that_comes_every_few(summary: Summary) -> None:
    assert summary.allreduce is not None
    exchange = summary.allreduce.model_copy(update={"bound_s": 1.6, "predicted_s": 2.4})
    requested = SynchronisationSummary(kind="local_sgd", every=8, num_exchanges=1, staleness={}, staleness_mean=0.0)
    alone = {"compute_only_time_s": 0.1, "compute_alone_time_s": 0.1}
    trained = summary.model_copy(update={"allreduce": exchange, **alone})
    averaged = trained.model_copy(update={"synchronisation": requested})

    def theory(make: Callable[[Comparison], Figure | None], run: Summary) -> list[float | None]:
        """Nothing hidden, all hidden that can be."""
        figure = make(comparison([{"collective": "ring"}], run))
        assert figure is not None
        return [series.y[0] for shape in ("triangle-up", "stroke") for series in marks(figure) if series.shape == shape]

    assert theory(plots.iteration, trained) == pytest.approx([2500, 1600])
    assert theory(plots.iteration, averaged) == pytest.approx([400, 200])
    assert theory(plots.scaling, averaged) == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize("make", [plots.iteration, plots.allreduce, plots.scaling])
def test_degraded_points_are_hollow_and_no_others(summary: Summary, make: Callable[[Comparison], Any]) -> None:
    degraded = summary.model_copy(update={"outcome": "degraded", "reasons": ["because"]})

    def drawn(settings: list[dict[str, Any]], **axes: Any) -> Figure:
        whole = comparison(settings, summary, **axes)
        points = (replace(whole.points[0], runs=(degraded,)), *whole.points[1:])
        figure: Figure = make(replace(whole, points=points))
        assert "degraded: hollow" in [series.name for series in figure.legend]
        assert "degraded: hollow" not in [series.name for series in make(whole).legend]
        return figure

    measured, *_ = marks(drawn([{"link.rate": rate} for rate in ("1mbit", "2mbit", "4mbit")]))
    assert measured.hollow == [True, False, False]
    assert [text.partition("\n")[2].partition(":")[0] for text in measured.hover] == [
        "1mbit (degraded)",
        "2mbit",
        "4mbit",
    ]
    (bars,) = boxes(drawn(TOGETHER, axes=(("collective", "stack"),)))
    assert bars.hollow == [True, False]


def test_the_parts_of_a_degraded_points_iteration_are_called_so(summary: Summary) -> None:
    degraded = summary.model_copy(update={"outcome": "degraded", "reasons": ["because"]})
    figure = plots.breakdown(comparison([{"seed": 1}, {"seed": 2}], degraded))
    assert figure is not None
    assert list(figure.y.ticks.values()) == ["1 (degraded)", "2 (degraded)"]
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    *_, last, whole = boxes(figure)
    assert last.right == whole.right == [pytest.approx(1e3 * quantiles.mean, rel=1e-4)] * 2, "parts add up"


def test_parts_of_very_many_points_are_of_the_first_and_say_so(summary: Summary) -> None:
    for num_points, among in ((40, ""), (96, ", the first 40 of 96 points (the others are in the table)")):
        figure = plots.breakdown(comparison([{"seed": seed} for seed in range(num_points)], summary))
        assert figure is not None
        assert figure.x.title == f"milliseconds of an iteration{among}"
        assert len(figure.y.ticks) == 40


def test_programs_are_drawn_by_their_time_and_have_no_parts(summary: Summary) -> None:
    command = CommandSummary(
        argv=["x"], backend=None, redirected=[], launcher=False, start_s=0.0, time_s=4.2, workers=[]
    )
    nothing = dict.fromkeys(("iteration_time_s", "compute_only_time_s", "scaling_factor", "network_efficiency"))
    ran = summary.model_copy(update={"command": command, **nothing})
    settings = [{"link.rate": rate} for rate in RATES]
    figure = plots.command(comparison(settings, ran))
    assert figure is not None
    assert {value for each in marks(figure) for value in each.y} == {4.2}
    assert figure.y.title == "command, s"
    assert [make(comparison(settings, ran)) for make in (plots.iteration, plots.scaling, plots.breakdown)] == [None] * 3
    assert plots.command(comparison(settings, summary)) is None


def test_what_varies_together_is_one_axis_of_names(summary: Summary) -> None:
    figure = plots.allreduce(comparison(TOGETHER, summary, axes=(("collective", "stack"),)))
    assert figure is not None
    assert summary.allreduce is not None
    (bars,) = boxes(figure)
    assert bars.top == [pytest.approx(1e3 * summary.allreduce.time_s, rel=1e-4)] * 2
    assert [0.5 * (left + right) for left, right in zip(bars.left, bars.right, strict=True)] == [0.0, 1.0]
    assert (figure.x.title, figure.x.ticks) == ("collective, stack", {0.0: "ring", 1.0: "ring\ngloo"})


def test_theory_of_an_iteration_lies_around_computing_and_the_bound(summary: Summary) -> None:
    figure = plots.iteration(comparison([{"seed": 1}, {"seed": 2}], summary))
    assert figure is not None
    assert summary.compute_only_time_s is not None
    assert summary.allreduce is not None
    most, least = (line.y[0] / 1e3 for line in lines(figure) if line.dash)
    assert most == pytest.approx(summary.compute_only_time_s + summary.allreduce.predicted_s, rel=1e-4)
    assert least == pytest.approx(max(summary.compute_only_time_s, summary.allreduce.bound_s), rel=1e-4)


def test_the_spread_of_iterations_is_drawn_around_each_point(summary: Summary) -> None:
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    for settings in ([{"seed": 1}, {"seed": 2}], TOGETHER):
        figure = plots.iteration(comparison(settings, summary))
        assert figure is not None
        (spread,) = [series for series in marks(figure) if series.low]
        assert spread.low[0] == pytest.approx(1e3 * quantiles.p10, rel=1e-4)
        assert spread.high[0] == pytest.approx(1e3 * quantiles.p90, rel=1e-4)


def test_names_of_places_are_broken_into_lines_and_theory_stands_on_its_bar(summary: Summary) -> None:
    settings: list[dict[str, Any]] = [
        {"collective": "ring", "stack": "gloo"},
        {"collective": {"kind": "tree", "chunk": "1MiB"}, "stack": None},
    ]
    figure = plots.iteration(comparison(settings, summary, axes=(("collective", "stack"),)))
    assert figure is not None
    assert figure.x.categories
    assert list(figure.x.ticks.values()) == ["ring\ngloo", "tree\n(chunk=1MiB)"]
    (bars,) = boxes(figure)
    for theory in marks(figure):
        for at, left, right in zip(theory.x, bars.left, bars.right, strict=True):
            assert left < at < right


def test_a_logarithmic_axis_has_whole_numbers(summary: Summary) -> None:
    quantiles = summary.iteration_time_s
    assert quantiles is not None
    points = tuple(
        compared_point(
            {"link.rate": rate},
            summary.model_copy(update={"iteration_time_s": quantiles.model_copy(update={"mean": time_s})}),
            bound_s=0.1,
            schedule_bound_s=0.1,
            predicted_s=0.1,
        )
        for rate, time_s in (("10mbit", 2.5), ("1gbit", 0.2))
    )
    figure = plots.iteration(Comparison(name="x", axes=(("link.rate",),), points=points, directory=Path()))
    assert figure is not None
    assert figure.y.log
    assert {200.0: "200", 1000.0: "1000", 2000.0: "2000"}.items() <= figure.y.ticks.items()


def test_theory_of_nothing_has_no_place_on_a_logarithmic_axis(summary: Summary) -> None:
    took = summary.allreduce
    assert took is not None
    whole = comparison([{"link.rate": rate} for rate in RATES], summary)
    points = tuple(
        replace(
            point,
            runs=(
                summary.model_copy(
                    update={
                        "allreduce": took.model_copy(update={"time_s": factor, "bound_s": 0.0 if factor == 1 else 0.5})
                    }
                ),
            ),
        )
        for point, factor in zip(whole.points, (1, 10, 100), strict=True)
    )
    figure = plots.allreduce(replace(whole, points=points))
    assert figure is not None
    assert figure.y.log
    (bound,) = [line for line in lines(figure) if line.dash == "dot"]
    assert sorted(bound.y, key=str) == [500.0, 500.0, None]


def test_points_whose_values_look_alike_have_places_of_their_own(summary: Summary) -> None:
    paths = ("hosts.w0.slowdown", "hosts.w1.slowdown")
    settings = [dict(zip(paths, values, strict=True)) for values in ((None, None), (2, None), (None, 2))]
    figure = plots.iteration(comparison(settings, summary, axes=(paths,)))
    assert figure is not None
    (bars,) = boxes(figure)
    assert len(set(bars.left)) == len(figure.x.ticks or {}) == 3
