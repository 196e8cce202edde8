import io
from typing import Any

from rich.console import Console

from testbed.report.terminal.links import render_links


def line_of(rate: str, *, down: bool = False) -> str:
    requested: dict[str, Any] = {"rate": rate, "delay": "5ms", "loss": 0.01, "queue": "1MB"}
    row = {
        "from": "w0",
        "to": "s0",
        "down": down,
        "requested": requested,
        "used_bps": 25e6,
        "backlog_bytes": 0,
        "drops": 1234,
    }
    file = io.StringIO()
    render_links("r1", [row], Console(file=file, width=120))
    title, _, line = file.getvalue().splitlines()
    assert title.strip() == "run r1"
    return line


def test_a_direction_is_a_line() -> None:
    line = line_of("100mbit")
    for part in ("w0 → s0", "100mbit", "5ms", "1.0 %", "1MB", "25 Mbit/s", "25.0 %", "1,234"):
        assert part in line
    assert "down" in line_of("100mbit", down=True)


def test_an_unshaped_direction_has_no_share_of_its_rate() -> None:
    line = line_of("1tbit")
    assert "unshaped" in line
    assert line.count("%") == 1, "the loss alone"
