"""Differences with their intervals, never drawn as more than they are; the parts of iterations on one scale."""

from pathlib import Path

import pytest

from testbed.report.differences import figures
from testbed.report.figures import Boxes, Figure, Line, Marks
from testbed.store.compare import Compared, Setting, compare
from testbed.store.differences import RunValues, difference
from testbed.store.metrics import Metric
from tests.compared_runs import modelled_runs


def made(*means: list[float], metric: Metric = "iteration_time_s") -> Compared:
    """Settings by their runs' means, made in turns; a run that is alone has ten iterations that are alike."""
    settings = []
    for which, runs in enumerate(means):
        values = tuple(
            RunValues(f"2026-01-01T00:{len(means) * index + which:02d}", [mean] if len(runs) > 1 else [mean] * 10)
            for index, mean in enumerate(runs)
        )
        settings.append(Setting(name="ABCDE"[which], summaries=(), values=values, mean=sum(runs) / len(runs)))
    first, *others = settings
    found = tuple(difference(first.values, other.values) for other in others)
    return Compared(metric=metric, settings=tuple(settings), differences=found, notes=())


def marks(figure: Figure) -> dict[str, Marks]:
    return {each.name: each for each in figure.series if isinstance(each, Marks)}


def lines(figure: Figure) -> dict[str, Line]:
    return {each.name: each for each in figure.series if isinstance(each, Line)}


def test_what_is_no_more_than_noise_is_hollow_and_called_so() -> None:
    compared = made([1.0, 1.01, 1.0], [1.1, 1.112, 1.1], [1.0, 1.012, 0.999], [0.9, 0.91, 0.9])
    drawn = marks(figures.differences(compared))
    assert set(drawn) == {"first", "worse", "not distinguishable from noise", "better"}
    assert {name: each.hollow for name, each in drawn.items() if name != "first"} == {
        "worse": False, "not distinguishable from noise": True, "better": False,
    }  # fmt: skip
    assert [list(drawn[name].y) for name in ("first", "worse", "not distinguishable from noise", "better")] == [
        [0], [1], [2], [3],
    ]  # fmt: skip
    assert len({each.color for each in drawn.values()}) == 4
    assert len({each.shape for each in drawn.values() if each.name != "first"}) == 3, "not by colour alone"


def test_more_is_better_of_samples() -> None:
    drawn = marks(figures.differences(made([1.0, 1.01], [1.3, 1.31], metric="samples_per_s")))
    assert "better" in drawn


def test_an_interval_goes_from_end_to_end_in_per_cent() -> None:
    compared = made([1.0, 1.01, 1.0], [1.1, 1.112, 1.1])
    figure = figures.differences(compared)
    (found,) = compared.differences
    assert found.low is not None
    assert found.high is not None
    line = lines(figure)["worse"]
    assert line.x[:2] == [
        pytest.approx(100 * (found.low - 1), rel=1e-4),
        pytest.approx(100 * (found.high - 1), rel=1e-4),
    ]
    assert list(line.y) == [1.0, 1.0, None], "a gap before the next"
    assert list(marks(figure)["worse"].x) == [pytest.approx(100 * (found.ratio - 1), rel=1e-4)]
    low, high = figure.domain("x")
    assert low <= 0 < high, "no difference is in the picture"
    assert figure.x.suffix == " %"
    assert "+10.0 %\n+9.9 % to +10.2 %" in figure.y.ticks[1], "a picture without a pointer says its numbers"


def test_factors_have_a_logarithmic_axis() -> None:
    compared = made([1.0, 1.01, 1.0], [4.0, 4.05, 4.0], [1.2, 1.21, 1.2])
    figure = figures.differences(compared)
    assert figure.x.log
    assert marks(figure)["worse"].x[0] == pytest.approx(compared.differences[0].ratio, rel=1e-4)
    low, high = figure.domain("x")
    assert low < 1 < 4 < high
    assert all(low <= at <= high for at in figure.x.ticks)


def test_one_run_of_each_is_dotted_and_claims_nothing() -> None:
    compared = made([1.0], [2.5])
    figure = figures.differences(compared)
    name = "noise between runs not known"
    assert marks(figure)[name].hollow is True
    assert lines(figure)[name].dash == "dot"


def test_too_few_iterations_have_no_interval() -> None:
    first = Setting(name="A", summaries=(), values=(RunValues("1", [1.0]),), mean=1.0)
    second = Setting(name="B", summaries=(), values=(RunValues("2", [1.1]),), mean=1.1)
    found = difference(first.values, second.values)
    figure = figures.differences(
        Compared(metric="allreduce_time_s", settings=(first, second), differences=(found,), notes=())
    )
    assert not lines(figure)
    assert marks(figure)["too few iterations to say"].hollow is True


SETTINGS = (("ring", 100e6), ("tree", 92e6))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return compare(modelled_runs(tmp_path_factory.mktemp("runs"), SETTINGS, repeat=3))


def test_every_run_is_drawn_in_the_order_in_which_they_were_made(compared: Compared) -> None:
    drawn = marks(figures.runs(compared))
    assert [list(each.x) for each in drawn.values()] == [[1, 3, 5], [2, 4, 6]]
    first = compared.settings[0]
    assert list(drawn[first.name].y) == [pytest.approx(1e3 * each.mean, rel=1e-4) for each in first.values]


def test_a_run_that_is_not_valid_is_hollow(tmp_path: Path) -> None:
    found = compare(modelled_runs(tmp_path, SETTINGS, repeat=1, outcome="degraded", reasons=["because"]))
    drawn = marks(figures.runs(found))
    assert [each.hollow for each in drawn.values()] == [[True], [True], True]
    assert "not valid: hollow" in drawn
    side_by_side = figures.parts(found)
    assert side_by_side is not None
    for figure in (side_by_side, figures.differences(found)):
        assert all("(degraded)" in name for name in figure.y.ticks.values())


def test_parts_of_every_run_lie_side_by_side_and_add_up(compared: Compared) -> None:
    figure = figures.parts(compared)
    assert figure is not None
    assert list(figure.y.ticks.values()) == [
        compared.settings[0].name, "run 2", "run 3", compared.settings[1].name, "run 2", "run 3",
    ]  # fmt: skip
    *_, whole = [each for each in figure.series if isinstance(each, Boxes)]
    means = [
        run.iteration_time_s.mean for setting in compared.settings for run in setting.summaries if run.iteration_time_s
    ]
    assert whole.right == [pytest.approx(1e3 * mean, rel=1e-3) for mean in means]
    assert figures.num_runs_left_out(compared) == 0


def test_panels_have_one_scale_and_the_run_in_the_middle(compared: Compared) -> None:
    panels = figures.iterations(compared)
    assert [setting.name for setting, *_ in panels] == [setting.name for setting in compared.settings]
    (scale,) = {figure.y.ends for *_, figure in panels}
    assert scale is not None
    for setting, run, figure in panels:
        means = sorted(each.mean for each in setting.values)
        assert run.iteration_time_s is not None
        assert run.iteration_time_s.mean == pytest.approx(means[1])
        *_, whole = [each for each in figure.series if isinstance(each, Boxes)]
        assert len(whole.top) == 12
        assert all(value is not None and value <= scale[1] for value in whole.top)
        assert figure.legend == []


def test_programs_of_the_users_have_no_parts(compared: Compared) -> None:
    settings = tuple(
        Setting(
            name=setting.name,
            summaries=tuple(run.model_copy(update={"iteration_time_s": None}) for run in setting.summaries),
            values=setting.values,
            mean=setting.mean,
        )
        for setting in compared.settings
    )
    programs = Compared(
        metric="command_time_s", settings=settings, differences=compared.differences, notes=compared.notes
    )
    assert figures.parts(programs) is None
    assert figures.iterations(programs) == []
    assert figures.runs(programs).y.title == "command_time, s"
