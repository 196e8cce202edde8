"""What workers read from the storage node, and what that puts on the links. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testbed.experiment.experiment import Experiment
from testbed.experiment.storage.base import REQUEST_BYTES, STORAGE_NODE, Storage
from testbed.experiment.topologies.base import participant_names
from testbed.plan.addressing import Port
from testbed.plan.paths import Hop, Path
from testbed.plan.traffic import expected_loads
from transports.channels.base import CHANNELS


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What one round of reading, by every worker once, puts on the links."""

    payload_bytes: tuple[int, ...]
    """That each worker reads, by rank."""
    wire_bytes: Mapping[Hop, int | None]
    """With headers, of every hop that may carry any; None where equal paths leave that open."""
    least_s: float
    """What the disk, or the most loaded link, needs for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoragePlan:
    """The storage node of a run."""

    requested: Storage
    port: Port
    start: Load
    """Before the first iteration."""
    batch: Load
    """For each iteration."""

    @property
    def reads_at_start(self) -> bool:
        """Whether anything is read before the first iteration."""
        return any(self.start.payload_bytes)

    @property
    def pairs(self) -> dict[Hop, int]:
        """The storage node and each worker, in both directions, as the keys of a traffic."""
        workers = participant_names(len(self.start.payload_bytes))
        return {pair: 0 for worker in workers for pair in ((STORAGE_NODE, worker), (worker, STORAGE_NODE))}

    @property
    def text(self) -> str:
        """`d0 with a disk of 1gbit: every worker reads all 1GiB before the first iteration`."""
        disk = f" with {self.requested.disk_text}" if self.requested.disk_text else ""
        return f"{STORAGE_NODE}{disk}: {self.requested.text()}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for `testbed plan --json`."""
        return {
            "node": STORAGE_NODE,
            "address": self.port.address,
            "text": self.text,
            **{name: _load_json(load) for name, load in (("start", self.start), ("batch", self.batch))},
        }


def _load_json(load: Load) -> dict[str, Any]:
    wire = {" -> ".join(hop): num_bytes for hop, num_bytes in load.wire_bytes.items()}
    return {**asdict(load), "wire_bytes": wire}


def storage_incompatibilities(experiment: Experiment) -> list[str]:
    """Why the spec's storage would mean nothing here: each with its key, the reason and the fix."""
    storage, workload = experiment.storage, experiment.workload
    if storage is None:
        return []
    found = []
    table = workload.timed_layers()
    if not workload.reads_data:
        found.append(
            f"storage: a workload {workload.kind} of this form reads no training data that anybody knows of; leave it "
            "out, or use training, or a replay of layers"
        )
    elif storage.reads_batches and workload.batch_samples() is None:
        found.append(
            f"storage: {storage.kind} reads the samples of each batch, and nobody says how many these are; name a "
            "network as the trace, or write `# batch_size=32` at the head of its file"
        )
    elif storage.reads_batches and table is not None and table.input_s:
        found.append(
            f"storage: {storage.kind} reads each batch over the network, and the trace says itself how long reading "
            "takes (input_us); leave one of them out"
        )
    return found


def plan_storage(
    experiment: Experiment, ports: Mapping[str, Port], all_paths: Mapping[Hop, Path], rates_bps: Mapping[Hop, float]
) -> StoragePlan | None:
    """The experiment's, whose links have these rates; None where it has none."""
    storage = experiment.storage
    if storage is None:
        return None
    workers = range(experiment.workers)
    batch_bytes = storage.batch_bytes(experiment.workload.batch_samples() or 0)
    start = [storage.start_bytes(rank, experiment.workers) for rank in workers]
    start_load, batch_load = (
        _load(storage, each, all_paths, rates_bps, experiment.mtu) for each in (start, [batch_bytes for _ in workers])
    )
    return StoragePlan(requested=storage, port=ports[STORAGE_NODE], start=start_load, batch=batch_load)


def _load(
    storage: Storage, payload: Sequence[int], all_paths: Mapping[Hop, Path], rates_bps: Mapping[Hop, float], mtu: int
) -> Load:
    wire_bytes = CHANNELS.parse("tcp").wire_bytes
    traffic: dict[Hop, int] = {}
    for worker, num_bytes in zip(participant_names(len(payload)), payload, strict=True):
        if num_bytes:
            traffic[STORAGE_NODE, worker] = wire_bytes(num_bytes, mtu).forward
            traffic[worker, STORAGE_NODE] = wire_bytes(REQUEST_BYTES, mtu).forward
    loads = expected_loads(all_paths, traffic, set())
    links_s = (8 * balanced / rates_bps[hop] for hop, (_, balanced) in loads.items())
    disk_s = 8 * sum(payload) / storage.disk_bps if storage.disk_bps else 0.0
    return Load(
        payload_bytes=tuple(payload),
        wire_bytes={hop: loads[hop][0] for hop in sorted(loads)},
        least_s=max((disk_s, *links_s)),
    )
