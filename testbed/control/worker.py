"""What crosses the control plane between a run and its workers, servers and aggregators, as plain data."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from testbed.experiment.fusion.base import FUSIONS, Fusion
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation
from testbed.experiment.workloads.base import ServedGroup
from transports.channels.base import PeerStatistics
from transports.collectives.network_info import NetworkInfo


class WorkerStorage(BaseModel):
    """What a worker reads from the storage node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int
    start_bytes: int
    """By this worker, before it starts."""
    reads_at_start: bool
    """Whether any worker does."""
    batch_bytes: int
    """For each iteration."""
    prefetch: bool
    """While the batch before is computed with."""


class StorageConfiguration(BaseModel):
    """Everything the storage node is given when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int
    num_workers: int
    disk_bps: float | None
    """Virtual, as a worker's times; None: it reads in no time."""
    dilation: float = 1.0


class WorkerConfiguration(BaseModel):
    """Everything a worker is given when it registers. Plain data: JSON over the control plane."""

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
    network_info: NetworkInfo = NetworkInfo(latency_s=100e-6, rate_bps=1e9)
    """For the collectives of stacks."""
    collective: dict[str, object]
    aggregators: dict[str, tuple[str, int]] = {}
    """The address of the worker's own, and its number there, by `InNetwork.identity`."""
    channel: dict[str, object]
    compression: dict[str, object]
    stack: dict[str, object] | None
    """A baseline library (`gloo`) instead of collective x channel, or None."""
    fusion: Annotated[Fusion, *FUSIONS.field()] = Field(default_factory=lambda: FUSIONS.parse({}))
    synchronisation: Annotated[Synchronisation, *SYNCHRONISATIONS.field()] = Field(
        default_factory=lambda: SYNCHRONISATIONS.parse({})
    )
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
    storage: WorkerStorage | None = None
    """None: its data are where they are needed."""
    launched_s: float = 0.0
    """CLOCK_MONOTONIC when the controller began to start the workers."""


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
    """Everything a parameter server is given when it starts."""

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
    """What one worker counted of an aggregating switch over the measured iterations, in chunks."""

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
    """Why the switch no longer aggregates."""
    slot_latencies: tuple[int, ...] = ()
    """Sums by how long they took from their chunk's first sending (switch_agg.slot_latency)."""

    @classmethod
    def of_result(cls, found: Mapping[str, Any]) -> Self | None:
        """Of SwitchReducer.statistics() `before` and `after`; None without in-network aggregation."""
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
            slot_latencies=tuple(
                late - early for early, late in zip(before["slot_latencies"], after["slot_latencies"], strict=True)
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerResult:
    """What a worker of a training counted in the measured iterations: the JSON of its `control_pb2.Result`."""

    switch: SwitchStatistics | None
    """None without in-network aggregation."""
    peers: dict[int, PeerStatistics]
    """Of its own endpoint, by peer; empty where the channel leaves counting to the kernel."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The only place where that JSON is read."""
        found = json.loads(text)
        peers = found.get("peers") or {}
        return cls(
            switch=SwitchStatistics.of_result(found),
            peers={int(peer): PeerStatistics(**counts) for peer, counts in peers.items()},
        )

    @staticmethod
    def dump(
        switch: tuple[object, object] | None,
        peers: tuple[Mapping[int, PeerStatistics], Mapping[int, PeerStatistics]] | None,
    ) -> dict[str, object]:
        """As a worker reports it, of what each counted before and after; empty where there is nothing to report."""
        found: dict[str, object] = {}
        if switch is not None:
            found |= {"before": switch[0], "after": switch[1]}
        if peers is not None:
            found["peers"] = {str(peer): _between(peers[0][peer], counts) for peer, counts in peers[1].items()}
        return found


def _between(before: PeerStatistics, after: PeerStatistics) -> dict[str, int]:
    earlier = asdict(before)
    return {name: count - earlier[name] for name, count in asdict(after).items()}
