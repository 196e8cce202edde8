import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from testbed.record.status import RunStatus
from testbed.report.terminal.status import age_text, render_status

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


def said(**runs: RunStatus | None) -> str:
    console = Console(file=io.StringIO(), width=60)
    render_status(runs, console, now=NOW)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1:00"), (185, "3:05"), (3723, "1:02:03")]
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_run_says_what_it_does_how_far_it_is_and_where_its_record_is() -> None:
    lines = said(r1=RUN).splitlines()
    assert lines[0] == "r1  quickstart  measured for 12 s, iteration 7/30  4 workers, 8 links, up 3:05"
    assert lines[1:] == ["  does    command: python a.py", "  record  /results/a"]


def test_one_that_has_said_nothing_is_there_all_the_same_and_none_is_said() -> None:
    assert said(r1=None).startswith("r1  has not said")
    assert said() == "no run is alive here\n"


def test_a_run_with_a_switch_that_adds_says_how_to_look_at_it() -> None:
    console = Console(file=io.StringIO(), width=60)
    render_status({"r1": RUN}, console, now=NOW, sockets={"r1": [Path("/run/testbed/r1/a0.agg.sock")]})
    said_ = console.file.getvalue()  # type: ignore[attr-defined]
    assert "  adds    switch-agg top --control /run/testbed/r1/a0.agg.sock\n" in said_
