"""What a run is doing, for a function of the caller's."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.errors import RunFailedError
from testbed.report.terminal.summary import LiveProgress

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Where a run is."""

    phase: str
    """`deploy`, `calibrate`, `start workers`, `warmup`, `measured`, `report`, ..."""
    iteration: int | None = None
    """That is over, from 1; None where a phase begins."""
    num_iterations: int | None = None
    """In the phase."""
    loss: float | None = None


OnProgress = Callable[[Step], None]


class Heard:
    """Implements testbed.record.status.Announcer: shows what a run is doing, and passes it on to a function.

    What the function raises ends the run, as an error that names it; `error` is what it has raised.
    """

    def __init__(self, on_progress: OnProgress | None, shown: LiveProgress) -> None:
        self.error: Exception | None = None
        self._on_progress = on_progress
        self._shown = shown

    def phase(self, name: str) -> None:
        """A phase begins."""
        self._shown.phase(name)
        self._hand_on(Step(phase=name))

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """Iteration `index` (from 1) of `total` is over."""
        self._shown.iteration(phase, index, total, loss)
        self._hand_on(Step(phase=phase, iteration=index, num_iterations=total, loss=loss))

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        """For the screen only: the sampler's thread calls this, ten times a second."""
        self._shown.links(utilizations)

    def say(self, text: str) -> None:
        """A line that stays, on the screen and in the log."""
        self._shown.say(text)
        _log.info("%s", text)

    def _hand_on(self, step: Step) -> None:
        if self._on_progress is None or self.error is not None:
            return
        try:
            self._on_progress(step)
        except Exception as error:
            self.error = error
            raise RunFailedError(f"on_progress raised {type(error).__name__}: {error}") from error
