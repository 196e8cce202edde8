"""What it costs to exchange gradients through one server, several, every peer, a ring, or a switch that aggregates.

The standard latency-bandwidth model, after Alqahtani and Demirbas 2019, "Performance Analysis and Comparison of
Distributed Machine Learning Systems" (ICCCN, arXiv:1909.02061), whose own formulas were not to be had: W workers of S
gradient bytes each on full-duplex links of one rate, `latency_s` for a message one way from host to host,
`addition_s_per_byte` to add.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.theory.buckets import exposed_s, in_turn
from testbed.traces.table import Gradient, LayerTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What connects each host, full duplex."""

    rate_bps: float
    """Of payload: the link's rate less headers."""
    latency_s: float = 0.0
    """One way from host to host."""
    addition_s_per_byte: float = 0.0

    def wire_s(self, size_bytes: float) -> float:
        """The time to send that many bytes over one of the links."""
        return 8 * size_bytes / self.rate_bps


class Architecture(ABC):
    """An architecture of data-parallel training: who exchanges what with whom."""

    @abstractmethod
    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """Of one exchange of `size_bytes` of gradients per worker; 0 for a single worker among peers."""

    @abstractmethod
    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:
        """What each worker sends."""


@dataclass(frozen=True, slots=True)
class Servers(Architecture):
    """Dedicated parameter servers, each with an equal share: all workers push, then all pull, without overlap.

    Every server's link carries W S / k each way, every worker's S each way; the slower of the two decides.
    """

    num_servers: int = 1

    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """2 max(W S / k, S) / B + 2 a + W S / k g."""
        share_bytes = num_workers * size_bytes / self.num_servers
        return (
            2 * links.wire_s(max(share_bytes, size_bytes))
            + 2 * links.latency_s
            + share_bytes * links.addition_s_per_byte
        )

    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:  # noqa: ARG002 (others need it)
        """S."""
        return size_bytes

    def server_bytes(self, size_bytes: int, num_workers: int) -> float:
        """What each server receives, and sends."""
        return num_workers * size_bytes / self.num_servers


class PeersWhole(Architecture):
    """Every worker sends all of its gradients to every other."""

    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """(W-1) S / B + a + (W-1) S g."""
        others = num_workers - 1
        if others == 0:
            return 0.0
        return links.wire_s(others * size_bytes) + links.latency_s + others * size_bytes * links.addition_s_per_byte

    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:
        """(W-1) S."""
        return (num_workers - 1) * size_bytes


class PeersSharded(Architecture):
    """Every worker is the server of its share of the parameters: shares go to their owners, and sums come back."""

    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """2 (W-1)/W S / B + 2 a + (W-1)/W S g."""
        if num_workers == 1:
            return 0.0
        moved_bytes = (num_workers - 1) / num_workers * size_bytes
        return 2 * links.wire_s(moved_bytes) + 2 * links.latency_s + moved_bytes * links.addition_s_per_byte

    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:
        """2 (W-1)/W S."""
        return 2 * (num_workers - 1) / num_workers * size_bytes


class Ring(Architecture):
    """Reduce-scatter and all-gather around a ring (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce Algorithms
    for Clusters of Workstations", JPDC)."""

    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """2 (W-1)/W S / B + 2 (W-1) a + (W-1)/W S g."""
        others = num_workers - 1
        moved_bytes = others / num_workers * size_bytes
        return 2 * links.wire_s(moved_bytes) + 2 * others * links.latency_s + moved_bytes * links.addition_s_per_byte

    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:
        """2 (W-1)/W S."""
        return 2 * (num_workers - 1) / num_workers * size_bytes


class InNetwork(Architecture):
    """A switch on the way from worker to worker aggregates at line rate while workers still send (Sapio et al. 2021,
    NSDI)."""

    def time_s(self, size_bytes: int, num_workers: int, links: Links) -> float:
        """S / B + a, however many workers."""
        return links.wire_s(size_bytes) + links.latency_s if num_workers > 1 else 0.0

    def worker_bytes(self, size_bytes: int, num_workers: int) -> float:
        """S."""
        return size_bytes if num_workers > 1 else 0


ARCHITECTURES: Final[dict[str, Architecture]] = {
    "one server": Servers(1),
    "peers, whole": PeersWhole(),
    "peers, sharded": PeersSharded(),
    "ring": Ring(),
    "in-network": InNetwork(),
}
"""Those without a number of their own to choose."""


def iteration_s(
    table: LayerTable,
    architecture: Architecture,
    num_workers: int,
    links: Links,
    buckets: Sequence[Gradient] | None = None,
) -> float:
    """One iteration of a trace: `buckets` are exchanged one after the other as backward makes them, or all gradients
    at once after backward where none are given."""

    def exchange_s(size_bytes: int) -> float:
        return architecture.time_s(size_bytes, num_workers, links)

    if buckets is None:
        return table.compute_s + exchange_s(table.size_bytes)
    return table.compute_s + exposed_s(in_turn(buckets, exchange_s), table.backward_s)
