"""Looks at the links of a run that goes on, once or until it ends: the rim of testbed.report.terminal.top."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from testbed.errors import Interrupted, MissingRequirementError
from testbed.record.status import RunStatus, alive_runs, choose, read_status
from testbed.report.terminal.top import LinkView, screen, views
from testbed.runner.link_client import SOCKET_NAME, show_links
from testbed.system.run_state import RUN_ROOT


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One run at one moment."""

    run_id: str
    status: RunStatus | None
    rows: Sequence[Mapping[str, Any]]
    """As testbed.runner.link_client.show_links gives them; none while the network is being made."""
    links: Sequence[LinkView]
    at_s: float
    """CLOCK_MONOTONIC."""

    @classmethod
    def take(cls, run_id: str, before: "Look | None", *, root: Path = RUN_ROOT) -> "Look":
        """Raises MissingRequirementError where the run does not answer."""
        status = read_status(run_id, root=root)
        rows = show_links(run_id, root=root) if (root / run_id / SOCKET_NAME).exists() else []
        now_s = time.monotonic()
        wall_s = now_s - before.at_s if before else 0.0
        elapsed_s = wall_s / status.dilation if status else wall_s
        return cls(
            run_id=run_id,
            status=status,
            rows=rows,
            links=views(rows, before.rows if before else None, elapsed_s=elapsed_s),
            at_s=now_s,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data: the links as `testbed link show --json` has them, and drops and marks per virtual second."""
        return {
            "run_id": self.run_id,
            "status": self.status.model_dump(mode="json") if self.status else None,
            "links": [
                {**row, "drops_per_s": link.drops_per_s, "marks_per_s": link.marks_per_s}
                for row, link in zip(self.rows, self.links, strict=True)
            ],
        }

    def render(self, console: Console) -> None:
        """All links, as many as there are."""
        console.print(screen(self.run_id, self.status, self.links, now=datetime.now(UTC), num_lines=None))


def once(name: str | None, *, interval_s: float, root: Path = RUN_ROOT) -> Look:
    """Two looks, so that there is something to say per second. Raises SpecError where no such run is alive."""
    run_id = choose(name, alive_runs(root=root))
    first = Look.take(run_id, None, root=root)
    time.sleep(interval_s)
    return Look.take(run_id, first, root=root)


def watch(name: str | None, console: Console, *, interval_s: float, root: Path = RUN_ROOT) -> None:
    """Until the run ends or somebody interrupts. Raises SpecError where no such run is alive."""
    run_id = choose(name, alive_runs(root=root))
    look: Look | None = None
    with suppress(Interrupted), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            begun_s = time.monotonic()
            try:
                look = Look.take(run_id, look, root=root)
            except MissingRequirementError:
                if run_id in alive_runs(root=root):
                    raise
            if run_id not in alive_runs(root=root):
                break
            if look is not None:
                now = datetime.now(UTC)
                view = screen(run_id, look.status, look.links, now=now, num_lines=console.height)
                live.update(view, refresh=True)
            time.sleep(max(0.0, interval_s - (time.monotonic() - begun_s)))
    if run_id not in alive_runs(root=root):
        console.print(f"run {run_id} is over", highlight=False)
