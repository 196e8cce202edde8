"""When points reach a loss: what is reached, what never is, and that runs and times are counted as is said."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from testbed.record.reader import CHECKSUMS, load_frame
from testbed.record.summary import Summary
from testbed.report.comparison.markdown import sweep_markdown
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.report.comparison.time_to_loss import loss_figure, time_rows, time_to_loss
from testbed.report.figures import Line, Marks
from testbed.verdict.parts import losses
from tests.compared import compared_point
from tests.unit.testbed.conftest import Scenario, make_record

LENGTH = 40


def trained(directory: Path, loss: pl.Expr, *, num_iterations: int = LENGTH, compute_s: float = 0.1) -> Summary:
    """A run without communication, of which every iteration's loss is what an expression makes of `step`, the number of
    iterations before it."""
    scenario = Scenario(
        num_iterations=num_iterations, num_warmup=0, compute_s=compute_s, bucket_bytes=(1 << 10,), rate_bps=1e9
    )
    summary = make_record(directory, scenario).summary
    path = directory / "iterations.parquet"
    frame = pl.read_parquet(path).with_columns(step=pl.col("index").cast(pl.Float64))
    measured = pl.col("phase") == "measured"
    frame.with_columns(loss=pl.when(measured).then(loss).otherwise(pl.col("loss"))).drop("step").write_parquet(path)
    (directory / CHECKSUMS).unlink()
    return summary


def swept(*points: ComparedPoint, target: float | None = None) -> Comparison:
    return Comparison(name="x", axes=(("compression",),), points=points, directory=Path(), target_loss=target)


STEP = pl.col("step")
FALLING = 4.0 - 0.1 * STEP
"""From 4 to 0.1 in 40 iterations."""


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedPoint]:
    """Half as fast in iterations; so fast that it is sooner; one that diverges, and one that gets no number."""
    folder = tmp_path_factory.mktemp("trained")
    exact = trained(folder / "a", FALLING, compute_s=0.2)
    lossy = trained(folder / "b", 4.0 - 0.05 * STEP, compute_s=0.1)
    worse = trained(folder / "c", 2.0 + 0.1 * STEP, compute_s=0.1)
    nan = trained(folder / "d", pl.when(STEP > 30).then(float("nan")).otherwise(FALLING), compute_s=0.1)
    names = ("none", "top_k", "signsgd", "onebit")
    return [
        compared_point({"compression": name}, run) for name, run in zip(names, (exact, lossy, worse, nan), strict=True)
    ]


def test_the_loss_is_the_lowest_that_all_reach_whose_training_lowered_it(points: list[ComparedPoint]) -> None:
    found = time_to_loss(swept(*points))
    assert found is not None
    assert not found.given
    assert found.window == 4
    assert found.target == pytest.approx(4.0 - 0.05 * 37.5), "the mean of the last four of the second point"
    exact, lossy, worse, nan = found.points
    # The mean of four, the last of them number i, is 4 - 0.1 (i - 1.5).
    assert exact.num_iterations == 22
    assert lossy.num_iterations == 40
    frame = losses(load_frame(Path(points[0].runs[0].record), "iterations"), points[0].runs[0])
    assert exact.time_s == pytest.approx(frame["until_s"][21])
    assert worse.time_s is None
    assert worse.note.startswith("never reached: ends with 5.75")
    assert nan.time_s is None
    assert nan.note == "never reached: diverged", "though it was that low before"
    rows = [row for _, row in time_rows(found)]
    assert exact.time_s is not None
    assert lossy.time_s is not None
    assert [row[2] for row in rows[2:]] == ["\u2013"] * 2
    assert float(rows[1][2].removesuffix(" x")) == pytest.approx(exact.time_s / lossy.time_s, rel=0.01)
    assert rows[3][3] == "\u2013"


def test_warm_up_counts(tmp_path: Path) -> None:
    summary = make_record(tmp_path / "warm", Scenario(num_warmup=5, num_iterations=10, dilation=4.0)).summary
    frame = losses(load_frame(tmp_path / "warm", "iterations"), summary)
    assert frame["phase"].to_list() == ["warmup"] * 5 + ["measured"] * 10
    assert summary.iteration_time_s is not None
    assert frame["until_s"][-1] == pytest.approx(15 * summary.iteration_time_s.mean, rel=0.1), "virtual seconds"


def test_a_loss_that_is_given_is_taken(points: list[ComparedPoint]) -> None:
    found = time_to_loss(swept(*points[:2], target=1.0))
    assert found is not None
    assert found.given
    assert "as requested" in found.text
    assert [each.time_s is None for each in found.points] == [False, True]
    assert found.points[1].note == "never reached: ends with 2.125"


def test_a_point_reaches_it_when_all_of_its_runs_do(tmp_path: Path, points: list[ComparedPoint]) -> None:
    exact, lossy = points[0].runs[0], points[1].runs[0]
    other = trained(tmp_path / "other", 4.0 - 0.04 * STEP)
    both = compared_point({"compression": "none"}, exact, lossy)
    found = time_to_loss(swept(both, points[1]))
    assert found is not None
    reached = found.points[0]
    assert reached.low_s is not None
    assert reached.high_s is not None
    assert reached.time_s == pytest.approx((reached.low_s + reached.high_s) / 2)
    assert reached.note.startswith("2 runs, ")
    some = time_to_loss(swept(replace(both, runs=(exact, other)), points[1], target=2.2))
    assert some is not None
    assert some.points[0].time_s is None
    assert some.points[0].note == "reached by 1 of 2 runs"


def test_what_rests_on_degraded_runs_is_called_so(points: list[ComparedPoint]) -> None:
    degraded = points[1].runs[0].model_copy(update={"outcome": "degraded", "reasons": ["because"]})
    found = time_to_loss(swept(points[0], replace(points[1], runs=(degraded,)), replace(points[2], runs=(degraded,))))
    assert found is not None
    assert [row[-1] for _, row in time_rows(found)] == ["", "degraded", "degraded"]
    figure = loss_figure(found, ("compression",))
    assert figure is not None
    assert [each.name for each in figure.series if isinstance(each, Line)][1] == "top_k (degraded)"


def test_what_no_training_lowers_has_no_time(points: list[ComparedPoint]) -> None:
    assert time_to_loss(swept(points[2], points[2])) is None
    assert time_to_loss(swept(points[0])) is None, "one point is nothing to compare"
    without = points[0].runs[0].model_copy(update={"loss": None})
    assert time_to_loss(swept(*(compared_point({"compression": "x"}, without) for _ in range(2)))) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_training_without_a_finite_loss_is_drawn_as_none(
    tmp_path: Path, points: list[ComparedPoint], value: float
) -> None:
    gone = trained(tmp_path / "gone", pl.when(STEP >= 0).then(value).otherwise(FALLING))
    found = time_to_loss(swept(points[0], points[1], compared_point({"compression": "x"}, gone)))
    assert found is not None
    assert found.points[2].note == "never reached: diverged"
    figure = loss_figure(found, ("compression",))
    assert figure is not None
    assert [len(each.x) for each in figure.series if isinstance(each, Line)][2] == 0


def test_a_record_that_is_gone_is_said(tmp_path: Path, points: list[ComparedPoint]) -> None:
    gone = points[1].runs[0].model_copy(update={"record": str(tmp_path)})
    found = time_to_loss(swept(points[0], replace(points[1], runs=(gone,)), points[0]))
    assert found is not None
    assert found.points[1].time_s is None
    assert found.points[1].note.startswith("not known: ")
    assert "iterations.parquet cannot be read" in found.points[1].note


def test_losses_are_lines_with_a_mark_where_the_loss_is_reached(points: list[ComparedPoint]) -> None:
    found = time_to_loss(swept(*points))
    assert found is not None
    figure = loss_figure(found, ("compression",))
    assert figure is not None
    lines = [each.name for each in figure.series if isinstance(each, Line)]
    assert lines == ["none", "top_k", "signsgd", "onebit", "loss 2.125"]
    marks = {each.name: (each.x[0], each.y[0]) for each in figure.series if isinstance(each, Marks)}
    assert set(marks) == {"none", "top_k"}
    time_s, value = marks["none"]
    assert time_s == pytest.approx(found.points[0].time_s, rel=1e-4)
    assert value is not None
    assert value <= found.target + 1e-4


def test_of_many_points_the_first_and_the_soonest_are_drawn(points: list[ComparedPoint]) -> None:
    slow, soon = points[0], points[1]
    many = [replace(slow, settings={"compression": f"{number}"}) for number in range(9)]
    found = time_to_loss(swept(*many, replace(soon, settings={"compression": "soon"})))
    assert found is not None
    figure = loss_figure(found, ("compression",))
    assert figure is not None
    names = [each.name for each in figure.series if isinstance(each, Line)][:-1]
    assert len(names) == 8
    assert names[0] == "0"
    assert "8 of 10 points" in figure.x.title


def test_the_markdown_has_a_row_for_each_point(points: list[ComparedPoint]) -> None:
    comparison = swept(*points)
    found = time_to_loss(comparison)
    assert found is not None
    text = sweep_markdown(comparison, found, [])
    assert found.text in text
    assert "| compression | time to it | iterations | speed-up | loss in the end | note |" in text
    assert "never reached: diverged" in text
