"""A sweep as an object: a row for each point, pictures, and what was wrong, in whatever is shown."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from testbed.api.sweeps import Differences, SweepResult
from testbed.experiment.sweep import expand
from testbed.runner.sweep import run_sweep
from testbed.runner.sweep_points import found, plan_points
from testbed.store.compare import compare
from tests.cheap_runs import CheapRuns

SPEC = {"name": "speeds", "workers": 2, "sweep": {"link.rate": ["100mbit", "1gbit"]}, "repeat": 3}


@pytest.fixture
def result(tmp_path: Path) -> SweepResult:
    """Whose faster point is invalid."""
    swept = expand(SPEC)
    runs = CheapRuns(tmp_path, lambda experiment, _: "invalid" if experiment.link.rate_bps == 1e9 else "valid")
    plans = plan_points(swept)
    comparison = found(swept, plans, output=tmp_path)
    return SweepResult(run_sweep(comparison, plans, run=runs, console=Console(file=StringIO())))


def test_a_row_for_each_point_and_no_number_of_one_that_does_not_stand(result: SweepResult) -> None:
    assert result.frame["link.rate"].to_list() == ["100mbit", "1gbit"]
    assert result.frame["outcome"].to_list() == ["valid", "invalid"]
    assert result.frame["iteration_time_s"].to_list() == [1.0, None]
    assert result.outcomes == {"valid", "invalid"}
    assert result.report.exists()


def test_what_was_wrong_is_in_whatever_is_shown(result: SweepResult) -> None:
    shown = result._repr_mimebundle_()
    assert "speeds, 2 points: 1 valid, 1 INVALID" in repr(result)
    assert "invalid" in shown["text/markdown"]
    assert "because" in shown["text/markdown"]
    assert set(result.figures) >= {"iteration", "breakdown"}
    assert "1 INVALID" in result.figures["iteration"].svg()
    assert result.reasons


def test_differences_are_rows_and_sentences() -> None:
    records = [Path(f"tests/records/version_{version}") for version in (2, 3)]
    differences = Differences(compare(records, metric="allreduce_time_s", force=True))
    assert differences.frame["ratio"].to_list() == [None, pytest.approx(differences.compared.differences[0].ratio)]
    shown = differences._repr_mimebundle_()
    for text in (*differences.sentences, *differences.notes):
        assert text in repr(differences)
        assert text in shown["text/markdown"]
    assert "different questions" in repr(differences)


def test_differences_have_pictures_and_a_page(tmp_path: Path) -> None:
    records = [Path(f"tests/records/version_{version}") for version in (2, 3)]
    differences = Differences(compare(records, metric="allreduce_time_s", force=True))
    assert set(differences.figures) == {"differences", "runs", "parts"}
    assert "different questions" in differences.figures["differences"].caption
    assert differences.write_page(tmp_path / "x.html").exists()
