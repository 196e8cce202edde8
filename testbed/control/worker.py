"""What crosses the control plane between a run and its workers, servers and aggregators, as plain data."""

import json
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict

from testbed.experiment.workloads.base import ServedGroup


class AsynchronousServer(BaseModel):
    """What a server does with each gradient that is pushed to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float
    momentum: float
    num_pushes: int
    """Of each worker."""


class ServerConfiguration(BaseModel):
    """Everything a server is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    num_workers: int
    address: str
    groups: tuple[ServedGroup, ...]
    timeout_s: float
    store_path: str
    """Of the workers' FileStore."""
    asynchronous: AsynchronousServer | None = None
    """None: servers add up, and workers step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchStatistics:
    """Of one worker, over the measured iterations; in chunks."""

    repeated: int
    """Done again by all workers because an exponent was guessed too low."""
    sent_again: int
    """Because no result came."""
    received_again: int
    """Results that were not awaited any more."""
    partial: int
    """Sums that came without somebody's contribution."""
    frame_bytes: int
    lost: str | None
    """Why the switch adds no more."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What a worker reports: SwitchReducer.statistics() `before` and `after`; None where no switch adds."""
        found = json.loads(text)
        if "before" not in found:
            return None
        before, after = found["before"], found["after"]

        def between(*names: str) -> int:
            return sum(int(after[name]) - int(before[name]) for name in names)

        return cls(
            repeated=between("repeated"),
            sent_again=between("timeouts", "fast_retransmissions"),
            received_again=between("duplicates"),
            partial=between("partial"),
            frame_bytes=after["frame_bytes"],
            lost=after["lost"],
        )
