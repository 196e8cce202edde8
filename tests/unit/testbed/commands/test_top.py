import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from testbed.commands.top import Look, once, watch
from testbed.deployment.link_service import LinkService
from testbed.deployment.live_links import LinkNow
from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.record.status import RunStatus, StatusFile
from testbed.runner.link_client import SOCKET_NAME
from testbed.system.run_state import RunState

PLAN = make_plan(validate({"name": "t", "workers": 2}))
RUN_ID = "261121t080000-aaaaaa"


class Links:
    """What the service needs of testbed.deployment.live_links.LiveLinks; every look finds ten drops more."""

    def __init__(self) -> None:
        self.num_drops = 0

    def now(self) -> list[LinkNow]:
        self.num_drops += 10
        return [
            LinkNow(direction=each, down=False, used_bps=5e7, backlog_bytes=0, num_drops=self.num_drops, num_marks=1)
            for each in PLAN.directions
        ]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    state = RunState.create(RUN_ID, root=tmp_path)
    with closing(LinkService(state.directory / SOCKET_NAME, Links(), name="t")):  # type: ignore[arg-type]
        yield state


def test_one_look_says_what_happens_in_a_second(tmp_path: Path, state: RunState) -> None:
    begun_s = time.monotonic()
    found = once(None, interval_s=0.1, root=tmp_path).to_json()
    took_s = time.monotonic() - begun_s
    assert found["run_id"] == RUN_ID
    assert len(found["links"]) == 4
    assert found["links"][0]["drops"] == 20
    assert 10 / took_s <= found["links"][0]["drops_per_s"] <= 100


def test_a_second_is_a_virtual_one(tmp_path: Path, state: RunState) -> None:
    now = datetime.now(UTC)
    said = RunStatus(
        run_id=state.run_id, name="t", workload="training", num_workers=2, num_links=4, dilation=50.0, started_at=now,
        record="/a", phase_since=now,
    )  # fmt: skip
    StatusFile(said, root=tmp_path).phase("measured")
    first = Look.take(RUN_ID, None, root=tmp_path)
    second = Look.take(RUN_ID, first, root=tmp_path)
    assert second.links[0].drops_per_s == pytest.approx(10 / (second.at_s - first.at_s) * 50)


def test_before_the_links_are_there_it_looks_all_the_same(tmp_path: Path) -> None:
    RunState.create(RUN_ID, root=tmp_path)
    assert once("last", interval_s=0.01, root=tmp_path).to_json()["links"] == []


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no run is alive"):
        once(None, interval_s=0.1, root=tmp_path)


def test_a_terminal_shows_the_links_until_the_run_is_over(tmp_path: Path, state: RunState) -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        console = Console(file=terminal, force_terminal=True, width=110, height=30)
        watching = threading.Thread(
            target=watch, args=(RUN_ID[:8], console), kwargs={"interval_s": 0.1, "root": tmp_path}
        )
        watching.start()
        shown = b""
        deadline_s = time.monotonic() + 20
        while shown.count("w1 → s0".encode()) < 2 and time.monotonic() < deadline_s:
            shown += os.read(master, 1 << 16)
        state.remove()
        while b"is over" not in shown and time.monotonic() < deadline_s:
            shown += os.read(master, 1 << 16)
        watching.join(10)
    os.close(master)
    assert not watching.is_alive()
    text = shown.decode(errors="replace")
    assert "\x1b[?1049h" in text, "on a screen of its own, which gives the terminal back as it was"
    assert "50 %" in text
    assert f"run {RUN_ID} is over" in text
