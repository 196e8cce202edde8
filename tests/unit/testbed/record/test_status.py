from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.record.status import FILE_NAME, RunStatus, StatusFile, alive_runs, choose, read_status
from testbed.system.run_state import RunState

RUN_ID = "261121t080000-aaaaaa"
NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)


def status() -> RunStatus:
    return RunStatus(
        run_id=RUN_ID,
        name="quickstart",
        workload="training",
        num_workers=4,
        num_links=8,
        started_at=NOW,
        record="/results/a",
        phase_since=NOW,
    )


class Screen:
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def phase(self, name: str) -> None:
        self.heard.append(("phase", name))

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        self.heard.append((phase, index, total, loss))

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        self.heard.append(tuple(utilizations))


def test_phases_are_written_at_once_and_iterations_now_and_then(tmp_path: Path) -> None:
    RunState.create(RUN_ID, root=tmp_path)
    now_s, screen = [100.0], Screen()
    reported = StatusFile(status(), screen, root=tmp_path, now_s=lambda: now_s[0])
    assert read_status(RUN_ID, root=tmp_path) is None
    reported.phase("measured")
    reported.links([("w0-eth0", 0.5)])
    for index, at_s in ((1, 100.1), (2, 100.7), (3, 100.8)):
        now_s[0] = at_s
        reported.iteration("measured", index, 30, 0.1)
    found = read_status(RUN_ID, root=tmp_path)
    assert found is not None
    assert (found.phase, found.iteration, found.num_iterations) == ("measured", 2, 30)
    reported.iteration("measured", 30, 30, 0.1)
    found = read_status(RUN_ID, root=tmp_path)
    assert found is not None
    assert found.iteration == 30
    reported.phase("report")
    found = read_status(RUN_ID, root=tmp_path)
    assert found is not None
    assert (found.phase, found.iteration) == ("report", None)
    assert found.phase_since > NOW
    assert ("phase", "report") in screen.heard
    assert ("measured", 1, 30, 0.1) in screen.heard
    assert (("w0-eth0", 0.5),) in screen.heard


def test_without_the_runs_directory_nothing_is_written_and_nothing_fails(tmp_path: Path) -> None:
    screen = Screen()
    reported = StatusFile(status(), screen, root=tmp_path)
    reported.phase("deploy")
    reported.iteration("measured", 1, 1, 0.0)
    assert list(tmp_path.iterdir()) == []
    assert len(screen.heard) == 2


def test_a_status_of_another_version_is_an_error(tmp_path: Path) -> None:
    state = RunState.create(RUN_ID, root=tmp_path)
    (state.directory / FILE_NAME).write_text("{}")
    with pytest.raises(MissingRequirementError, match=r"status\.json"):
        read_status(RUN_ID, root=tmp_path)


def test_runs_are_alive_before_they_take_questions(tmp_path: Path) -> None:
    RunState.create(RUN_ID, root=tmp_path)
    assert alive_runs(root=tmp_path) == [RUN_ID]
    assert choose(None, alive_runs(root=tmp_path)) == RUN_ID
    assert choose("last", [RUN_ID, "261121t09"]) == "261121t09"
    for name in ("x", ""):
        with pytest.raises(SpecError, match=f"there are {RUN_ID}"):
            choose(name, [RUN_ID])
