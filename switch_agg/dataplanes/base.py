"""The interface of a data plane: something at an address that serves jobs."""

from collections.abc import Mapping
from typing import Protocol

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.faults import Faults
from switch_agg.job import Job


class DataPlane(Protocol):
    """An aggregator that runs."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those served."""

    def configure(self, job: Job) -> None:
        """Serve a job. Raises JobError for one that this data plane cannot serve, or whose slots are taken."""

    def remove(self, number: int) -> None:
        """Serve it no longer. Raises JobError for one that is not served."""

    def reset(self, number: int) -> int:
        """Begin another epoch of the job and tell its workers; returns the epoch, below the root of a tree the one that
        the root is asked to end. Raises JobError."""

    def inject(self, faults: Faults) -> None:
        """From now on, let these happen instead of those before. Raises UnsupportedError for what cannot be made."""

    def counters(self) -> Counters:
        """What it has seen so far."""

    def unsent(self) -> Mapping[str, int]:
        """By host: datagrams to it that this machine refused to send (no route, an interface that is down)."""

    def in_flight(self) -> int:
        """Contributions to chunks whose result is not known."""

    def stragglers(self, number: int) -> Stragglers:
        """Who lets the others wait. Raises JobError."""

    def busy_slots(self, number: int) -> int:
        """How many of the job's slots hold contributions to a chunk whose sum is not known. Raises JobError."""

    def epoch(self, number: int) -> int:
        """Of the job. Raises JobError."""

    def check(self) -> None:
        """Raise what ended it, if anything did."""

    def close(self) -> None:
        """End it and give everything back."""
