import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from testbed.record.status import RunStatus
from testbed.report.terminal.top import screen, views

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)


def row(sender: str, receiver: str, **changes: Any) -> dict[str, Any]:
    return {
        "link": f"{sender}-{receiver}",
        "from": sender,
        "to": receiver,
        "down": False,
        "requested": {"rate": "100mbit", "delay": "5ms"},
        "used_bps": 50e6,
        "backlog_bytes": 0,
        "drops": 0,
        "marks": 0,
        **changes,
    }


def drawn(
    rows: list[dict[str, Any]],
    before: list[dict[str, Any]] | None = None,
    *,
    lines: int | None = None,
    width: int = 130,
) -> str:
    status = RunStatus(
        run_id="r1",
        name="quickstart",
        workload="training",
        num_workers=4,
        num_links=8,
        started_at=NOW,
        record="/a",
        phase="measured",
        phase_since=NOW,
        iteration=3,
        num_iterations=9,
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(screen("r1", status, views(rows, before, elapsed_s=2.0), now=NOW, num_lines=lines))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_link_is_a_line_with_what_it_does() -> None:
    text = drawn(
        [row("w0", "s0", drops=30, marks=8, backlog_bytes=15140)],
        [row("w0", "s0", drops=10, marks=8)],
    )
    (line,) = (line for line in text.splitlines() if line.startswith("w0 → s0"))
    for part in ("100 Mbit/s", "5 ms", "50 Mbit/s", "50 %", "15.1 kB", "30", "10", "8"):
        assert part in line
    assert "measured for 0 s, iteration 3/9" in text
    assert "10 drops/s, 0 marks/s" in text


def test_a_terminal_of_80_columns_shows_every_word() -> None:
    busy = row("w10", "s0", drops=12345, marks=10, backlog_bytes=15140, used_bps=99.99e6)
    text = drawn([busy], [row("w10", "s0", drops=10)], width=80)
    (line,) = (line for line in text.splitlines() if line.startswith("w10 → s0"))
    for part in ("100 Mbit/s", "5 ms", "99.99 Mbit/s", "100 %", "15.1 kB", "12,345", "6168", "10", "5"):
        assert part in line
    assert "…" not in line
    assert "━" in line


def test_without_a_look_before_nothing_is_known_per_second() -> None:
    (view,) = views([row("w0", "s0", drops=30)], None, elapsed_s=0.0)
    assert (view.drops, view.drops_per_s, view.share) == (30, 0.0, pytest.approx(0.5))


def test_a_link_that_is_down_says_so() -> None:
    assert "down" in drawn([row("w0", "s0", down=True)])


def test_what_does_not_fit_is_the_least_busy() -> None:
    rows = [row(f"w{index}", "s0", used_bps=index * 1e6) for index in range(30)]
    text = drawn(rows, lines=16)
    assert len(text.splitlines()) <= 16
    assert "and 20 less busy ones" in text
    assert "w29 → s0" in text
    assert "w3 → s0" not in text
    assert len(drawn(rows).splitlines()) > 30


def test_a_link_inside_a_host_has_no_rate() -> None:
    text = drawn([row("w0", "h0", requested={"rate": "1tbit", "delay": "0ns"})])
    assert "unshaped" in text
    assert "ms" not in text
    assert "%" not in text.splitlines()[-1]


def test_before_there_are_links_it_says_so() -> None:
    assert "not there yet" in drawn([])
