"""How the time of a whole training scales with workers when its data come from shared storage and one node serves all.

After Hashemi, Noghabi, Gropp, Campbell 2016, "Performance Modeling of Distributed Deep Neural Networks"
(arXiv:1612.00521), whose own formulas were not to be had: what the abstract says (initialisation dominates and nothing
scales beyond a few nodes; a single server is the bottleneck from some number of workers on) in the standard terms.
"""

from dataclasses import dataclass
from math import ceil, inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Where training data are read from before training starts."""

    shared_bytes_per_s: float
    """Of the file system that all workers share."""
    disk_bytes_per_s: float = inf
    """That one worker can take in."""
    partitioned: bool = False
    """Whether each worker reads its part alone; otherwise each reads all data."""

    def read_s(self, data_bytes: float, num_workers: int) -> float:
        """Until every worker has its data, all reading at the same time."""
        each_bytes = data_bytes / num_workers if self.partitioned else data_bytes
        return each_bytes / min(self.disk_bytes_per_s, self.shared_bytes_per_s / num_workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class MainNode:
    """One node that gathers every other worker's gradients and returns their sum, one message after the other, as
    CNTK's SimpleDistGradAggregator does with the headers of its minibatches."""

    rate_bps: float
    latency_s: float = 0.0
    addition_s_per_byte: float = 0.0

    def time_s(self, size_bytes: int, num_workers: int) -> float:
        """2 (N-1) (a + S / B) + N S g; 0 for one worker, which has nobody to serve."""
        if num_workers == 1:
            return 0.0
        messages_s = 2 * (num_workers - 1) * (self.latency_s + 8 * size_bytes / self.rate_bps)
        return messages_s + num_workers * size_bytes * self.addition_s_per_byte

    def saturated_from(self, size_bytes: int, compute_s: float) -> float:
        """The number of workers whose gradients, in and out, take it as long as they compute: compute B / (2 S)."""
        return compute_s * self.rate_bps / (2 * 8 * size_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training from its start to its end."""

    data_bytes: float
    num_samples: int
    """Of one epoch."""
    num_epochs: int
    batch_size: int
    """Of one worker."""
    compute_s: float
    """Of one iteration of one worker."""
    size_bytes: int
    """Of gradients."""
    launch_s: float = 0.0

    def initialisation_s(self, storage: Storage, num_workers: int) -> float:
        """The time until the first iteration."""
        return self.launch_s + storage.read_s(self.data_bytes, num_workers)

    def total_s(self, storage: Storage, server: MainNode, num_workers: int) -> float:
        """The time of a whole training of a fixed number of epochs (strong scaling)."""
        num_iterations = self.num_epochs * ceil(self.num_samples / (num_workers * self.batch_size))
        each_s = self.compute_s + server.time_s(self.size_bytes, num_workers)
        return self.initialisation_s(storage, num_workers) + num_iterations * each_s

    def speed_up(self, storage: Storage, server: MainNode, num_workers: int) -> float:
        """The time of one worker over that of `num_workers`."""
        return self.total_s(storage, server, 1) / self.total_s(storage, server, num_workers)
