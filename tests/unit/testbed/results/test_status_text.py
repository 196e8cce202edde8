import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from testbed.results import wording
from testbed.results.status_text import age_text, iteration_text, render_status
from testbed.status import RunStatus

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
RUN = RunStatus(
    run_id="261121t080000-aaaaaa",
    name="quickstart",
    workload="command: python a.py",
    num_workers=4,
    num_links=8,
    started_at=NOW - timedelta(minutes=3, seconds=5),
    record="/results/a",
    phase="measured",
    phase_since=NOW - timedelta(seconds=12),
    iteration=7,
    num_iterations=30,
)


def said(*runs: RunStatus) -> str:
    console = Console(file=io.StringIO(), width=160)
    render_status(runs, console, now=NOW)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1:00"), (185, "3:05"), (3723, "1:02:03")]
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_run_is_a_line_and_says_where_its_record_is() -> None:
    text = said(RUN)
    for part in (RUN.run_id, "measured", "12 s", "7/30", "3:05", "python a.py", "record /results/a"):
        assert part in text


def test_several_runs_are_a_table_and_none_is_said() -> None:
    other = RUN.model_copy(update={"run_id": "261121t090000-bbbbbb", "iteration": None})
    assert iteration_text(other) == wording.DASH
    assert "record" not in said(RUN, other)
    assert said() == "no run is alive here\n"
