"""Points side by side: medians of what stands, nothing of what does not, theory beside both."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.errors import MissingRequirementError
from testbed.record.summary import CommandSummary, Outcome, Summary
from testbed.report.comparison.comparison import render_comparison, render_points, write_comparison
from testbed.report.comparison.points import ComparedPoint, Comparison
from tests.compared import compared_point


def slower(summary: Summary, factor: float, outcome: Outcome = "valid") -> Summary:
    time_s = summary.iteration_time_s
    assert time_s is not None
    changed = time_s.model_copy(update={"mean": factor * time_s.mean})
    reasons = [] if outcome == "valid" else ["the cores were busy"]
    return summary.model_copy(update={"iteration_time_s": changed, "outcome": outcome, "reasons": reasons})


def rate(text: str) -> dict[str, Any]:
    return {"link.rate": text}


def point(*runs: Summary, num_requested: int = 1, **settings: Any) -> ComparedPoint:
    chosen = settings or {"link.rate": "100mbit"}
    return compared_point(chosen, *runs, spec_sha256="ab" * 32, num_requested=num_requested)


def comparison(directory: Path, *points: ComparedPoint) -> Comparison:
    return Comparison(
        name="x", axes=tuple((path,) for path in points[0].settings), points=points, directory=directory / "x-sweep-1"
    )


def text_of(of: Comparison, width: int = 160, render: Callable[[Comparison, Console], None] = render_comparison) -> str:
    text = StringIO()
    render(of, Console(file=text, width=width))
    return text.getvalue()


def test_a_point_is_the_mean_of_its_runs_that_stand(summary: Summary) -> None:
    assert summary.iteration_time_s is not None
    mean_s = summary.iteration_time_s.mean
    runs = [slower(summary, factor) for factor in (1, 3, 2)]
    row = point(*runs, slower(summary, 100, "invalid"), num_requested=4).row()
    assert row["iteration_time_s"] == pytest.approx(2 * mean_s)
    assert (row["iteration_time_low_s"], row["iteration_time_high_s"]) == (mean_s, 3 * mean_s)
    assert (row["num_runs"], row["outcome"]) == (3, "invalid")
    single = point(summary).row()
    assert single["iteration_time_low_s"] == summary.iteration_time_s.p10


def test_an_invalid_run_that_was_repeated_is_in_no_number_and_is_said(summary: Summary, tmp_path: Path) -> None:
    bad = slower(summary, 100, "invalid")
    repeated = replace(point(bad, summary), num_retries=1)
    assert (repeated.outcome, repeated.counted, repeated.repeated) == ("valid", [summary], [bad])
    row = repeated.row()
    assert (row["num_runs"], row["num_repeated"], row["num_degraded"]) == (1, 1, 0)
    waiting = replace(point(bad), num_retries=1)
    assert waiting.outcome == "not run", "another is to be made in its place"
    text = text_of(comparison(tmp_path, repeated))
    assert "link.rate=100mbit: invalid, and repeated: the cores were busy" in text


def test_a_degraded_point_is_called_so_in_the_table(summary: Summary, tmp_path: Path) -> None:
    of = point(slower(summary, 1, "degraded"), summary, num_requested=2)
    assert (of.degraded, of.outcome, of.row()["num_degraded"]) == (True, "degraded", 1)
    assert "degraded" in text_of(comparison(tmp_path, of)).partition("•")[0]


def test_a_point_without_a_run_that_stands_has_theory_and_no_numbers(summary: Summary) -> None:
    for missing in (point(), point(slower(summary, 1, "failed"))):
        row = missing.row()
        assert (row["iteration_time_s"], row["scaling_factor"], row["loss"]) == (None, None, None)
        assert (row["allreduce_bound_s"], row["allreduce_predicted_s"]) == (0.5, 0.6)
    assert point().outcome == "not run"


def test_what_differs_only_in_numbers_is_said_once_as_the_worst_has_it(summary: Summary, tmp_path: Path) -> None:
    def waited(percent: int, outcome: Outcome) -> Summary:
        reason = f"threads waited {percent} % (of {3 * percent} s); use fewer workers"
        return summary.model_copy(update={"outcome": outcome, "reasons": [reason]})

    points = [
        point(waited(7, "degraded"), **rate("1mbit")),
        point(waited(33, "invalid"), **rate("2mbit")),
        point(waited(9, "degraded"), **rate("3mbit")),
        point(slower(summary, 1, "degraded"), **rate("4mbit")),
        point(summary, **rate("5mbit")),
    ]
    assert comparison(tmp_path, *points).reasons == [
        "link.rate=2mbit: invalid (the worst of 3 points): threads waited 33 % (of 99 s); use fewer workers",
        "link.rate=4mbit: degraded: the cores were busy",
    ]
    two = comparison(tmp_path, *(point(waited(each, "degraded"), **rate(f"{each}mbit")) for each in (5, 19)))
    assert two.reasons[0].startswith("link.rate=19mbit: degraded (the worst of 2 points): threads waited 19 %")


def test_notes_of_a_degraded_run_are_no_reasons(summary: Summary, tmp_path: Path) -> None:
    noted = slower(summary, 1, "degraded").model_copy(update={"notes": ["time ran 4 times slower"]})
    assert comparison(tmp_path, point(noted, **rate("1mbit"))).reasons == [
        "link.rate=1mbit: degraded: the cores were busy"
    ]


def test_theory_is_that_of_the_measured_latency_where_there_is_one(summary: Summary) -> None:
    assert summary.allreduce is not None
    assert point(summary).row()["allreduce_predicted_s"] == summary.allreduce.predicted_s


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_shows_what_varied_and_says_what_was_wrong(summary: Summary, tmp_path: Path, width: int) -> None:
    bad = point(slower(summary, 1, "invalid"), **rate("1gbit"))
    text = text_of(comparison(tmp_path, point(summary), bad), width)
    for words in ("100mbit", "1gbit", "valid", "link.rate=1gbit: invalid: the cores were busy"):
        assert words in " ".join(text.split())
    table = text.partition("\nSweep ")[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= width


def test_a_command_is_compared_by_its_time(summary: Summary, tmp_path: Path) -> None:
    command = CommandSummary(
        argv=["true"], backend=None, redirected=[], launcher=False, start_s=0.0, time_s=4.2, workers=[]
    )
    ran = summary.model_copy(update={"command": command, "iteration_time_s": None})
    found = comparison(tmp_path, point(ran, **rate("10mbit")), point(ran, **rate("20mbit")))
    assert found.points[0].row()["command_time_s"] == 4.2
    text = text_of(found)
    assert "4.2 s" in text
    assert "iteration" not in text


def test_points_to_run_are_listed_with_what_theory_predicts(summary: Summary, tmp_path: Path) -> None:
    text = text_of(comparison(tmp_path, point(summary), point(**rate("1gbit"))), render=render_points)
    assert [line.split()[-1] for line in text.splitlines()[-2:]] == ["result", "yes"]
    assert "600 ms" in text


def test_values_in_brackets_are_no_markup(summary: Summary, tmp_path: Path) -> None:
    argvs = [["/bin/a", "x"], ["python", "b.py"], ["/bin/c", "x"]]
    runs = (slower(summary, 1), slower(summary, 2))
    of = comparison(tmp_path, *(point(*runs, num_requested=2, **{"workload.argv": argv}) for argv in argvs))
    shown = " ".join(text_of(of).split())
    assert shown.count("[python,b.py]") == 1
    assert "from [/bin/a,x]" in shown
    assert "[/bin/c,x]" in text_of(of, render=render_points)


def test_the_directory_has_the_same_numbers_for_scripts(summary: Summary, tmp_path: Path) -> None:
    written = comparison(tmp_path, point(summary), point(**rate("1gbit")))
    write_comparison(written)
    document = json.loads((written.directory / "sweep.json").read_text())
    assert document["varied"] == ["link.rate"]
    assert document["points"][0]["settings"] == {"link.rate": "100mbit"}
    assert document["points"][0]["runs"][0]["record"] == summary.record
    assert (written.directory / "sweep.csv").read_text().startswith("link.rate,outcome,num_runs,iteration_time_s")
    (tmp_path / "file").touch()
    with pytest.raises(MissingRequirementError, match="cannot write"):
        write_comparison(comparison(tmp_path / "file", point(summary)))
