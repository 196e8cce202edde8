"""What crosses the control plane between a run and its workers, servers and aggregators, as plain data."""

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from testbed.experiment.fusion import Fusion
from testbed.experiment.synchronisation import Synchronisation
from testbed.experiment.workloads.base import ServedGroup


class WorkerConfiguration(BaseModel):
    """Everything a worker is told when it registers. Plain data: JSON over the control plane."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    rank: int
    num_workers: int
    host: str
    interface: str
    """The emulated interface: `w0-eth0`."""
    address: str
    """Its IPv4 address."""
    seed: int
    workload: dict[str, object]
    racks: tuple[int, ...] = ()
    """For each rank, the number of its rack: those on one switch are in one."""
    latency_s: float = 100e-6
    """Of an empty message from worker to worker."""
    goodput_bps: float = 1e9
    """Of the slowest worker's link."""
    collective: dict[str, object]
    aggregators: dict[str, tuple[str, int]] = {}
    """The address of the worker's own, and its number there, by `InNetwork.identity`."""
    channel: dict[str, object]
    compression: dict[str, object]
    stack: dict[str, object] | None
    """A whole stack (`gloo`) instead of collective x channel, or None."""
    fusion: Fusion = Field(default_factory=lambda: Fusion.model_validate({}))
    synchronisation: Synchronisation = Field(default_factory=lambda: Synchronisation.model_validate({}))
    buckets: tuple[int, ...] = ()
    """The plan's: elements in each."""
    dilation: float
    """How many times slower time runs: every time and rate here is virtual, and the worker makes it real where it
    waits (testbed/worker/agent.py)."""
    timeout_s: float
    store_path: str
    """A file for torch's FileStore; it lies in the run's directory, never on the emulated links."""
    num_threads: int
    """torch's intra-op threads."""
    slowdown: dict[str, object] | None = None
    """A value on the slowdown axis: this worker is a compute straggler."""


class WorkerControl:
    """The worker's side of the control plane; implemented in `testbed/worker/agent.py`."""

    @abstractmethod
    def barrier(self, name: str) -> None:
        """Return when every worker has come to the barrier of that name."""

    @abstractmethod
    def report(self, event: object) -> None:
        """Queue one `control_pb2.Event` (its rank is filled in); returns at once."""


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
    dilation: float = 1.0
    """As a worker's."""
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
