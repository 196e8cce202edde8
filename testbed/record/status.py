"""What a run is doing at this moment, for people in another terminal: a small file in the run's directory.

Every change of phase is in it at once, iterations about twice a second. It is the group's to read, as all of a run's
directory is.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import MissingRequirementError, SpecError
from testbed.system.run_state import RUN_ROOT, RunState, run_ids

FILE_NAME: Final = "status.json"
_INTERVAL_S: Final = 0.5


class RunStatus(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    name: str
    workload: str
    """Its kind, and of a command its line."""
    num_workers: int
    num_links: int
    """Directions."""
    dilation: float = 1.0
    """So many wall seconds are a virtual one."""
    started_at: datetime
    record: str
    """The record's directory, absolute."""
    metrics: str | None = None
    """Where its page of metrics is, if it has one."""
    phase: str = "deploy"
    phase_since: datetime
    iteration: int | None = None
    """Of the phase, from 1; None before the first is over, and of what has none."""
    num_iterations: int | None = None
    """In the phase."""


class Progress(Protocol):
    """Who hears what a run is doing; any thread may call it."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """Iteration `index` (from 1) of `total` is over."""

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        """Name and utilization, 0 to 1, of every link direction since the last sample."""


class Announcer(Progress, Protocol):
    """Who hears more than that, since nobody else will say it."""

    def say(self, text: str) -> None:
        """A line that stays."""


class StatusFile:
    """Implements Progress and passes everything on. There is no file before the run's directory is there, nor after it
    has gone."""

    def __init__(
        self,
        status: RunStatus,
        *progress: Progress,
        root: Path = RUN_ROOT,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._progress = progress
        self._directory = root / status.run_id
        self._now_s = now_s
        self._written_s = float("-inf")

    def phase(self, name: str) -> None:
        """Written at once."""
        if name != self._status.phase or self._written_s < 0:
            changed = {"phase": name, "phase_since": datetime.now(UTC), "iteration": None, "num_iterations": None}
            self._status = self._status.model_copy(update=changed)
            self._write()
        for each in self._progress:
            each.phase(name)

    def metrics_at(self, url: str | None) -> None:
        """Where the page of metrics is; written with the next phase."""
        self._status = self._status.model_copy(update={"metrics": url})

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """Written when the last has been for a while, or is the phase's last."""
        self._status = self._status.model_copy(update={"iteration": index, "num_iterations": total})
        if index == total or self._now_s() - self._written_s >= _INTERVAL_S:
            self._write()
        for each in self._progress:
            each.iteration(phase, index, total, loss)

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        """Not in the file: who wants to know asks the run (`testbed top`)."""
        for each in self._progress:
            each.links(utilizations)

    def _write(self) -> None:
        self._written_s = self._now_s()
        temporary = self._directory / f".{FILE_NAME}.new"
        try:
            temporary.write_text(self._status.model_dump_json(indent=2))
            temporary.replace(self._directory / FILE_NAME)
        except FileNotFoundError:  # the run's directory is not there yet, or not any more
            pass


def read_status(run_id: str, *, root: Path = RUN_ROOT) -> RunStatus | None:
    """None before the run has said anything. Raises MissingRequirementError when another version wrote it."""
    path = root / run_id / FILE_NAME
    try:
        return RunStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise MissingRequirementError(f"{path} is no status of this version: {error.errors()[0]['msg']}") from None


def alive_runs(*, root: Path = RUN_ROOT) -> list[str]:
    """The runs whose coordinator lives, oldest first."""
    found = []
    for run_id in run_ids(root=root):
        try:
            if RunState.load(run_id, root=root).coordinator_alive():
                found.append(run_id)
        except FileNotFoundError:  # it has just ended
            continue
    return found


def choose(name: str | None, alive: Sequence[str]) -> str:
    """A run by its id or the beginning of it, `last`, or None for the only one. Raises SpecError with those alive."""
    there_are = f"there are {', '.join(alive)}" if alive else "no run is alive here (as this user)"
    if name == "":
        raise SpecError(f"a run's name is empty; write the beginning of its id, or `last`; {there_are}")
    if name == "last" and alive:
        return alive[-1]
    found = alive if name is None else [run_id for run_id in alive if run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if name is None and found:
        raise SpecError(f"several runs are alive: name one by the beginning of its id, or `last`; {there_are}")
    several = "several runs begin" if found else "no run that is alive begins"
    raise SpecError(f"{several} with {name!r}; {there_are}" if name is not None else there_are)
