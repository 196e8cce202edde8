"""What if the network were fully used? The model of "Is Network the Bottleneck of Distributed Training?".

Zhang et al. 2020 (NetAI'20, arXiv:2006.10103), after the authors' code (github.com/netx-repo/training-bottleneck,
`simulation/`): gradients become ready as they did in a recorded backward pass, are joined by time, and are all-reduced
bucket by bucket by a ring that fills its links. There are no costs per message, so the result is the best that any
transport could reach.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from testbed.theory.buckets import ByTime, Exchange, exposed_s, in_turn
from testbed.traces.table import LayerTable

MAX_FACTOR: Final = 1e6
"""Beyond which a factor is no answer."""
_STEP: Final = 1.01
"""From one factor that is tried to the next."""


class AdditionSample(NamedTuple):
    """How long a processor took to add two vectors."""

    size_bytes: int
    """Of one vector."""
    time_s: float


@dataclass(frozen=True, slots=True)
class Addition:
    """The cost of adding, interpolated between measurements; beyond them the nearest one counts, as in the source."""

    samples: tuple[AdditionSample, ...]
    """By ascending size; at least one."""

    def time_s(self, size_bytes: float) -> float:
        """The time to add two vectors of that size."""
        sizes = [sample.size_bytes for sample in self.samples]
        above = bisect_right(sizes, size_bytes)
        if above in (0, len(sizes)):
            return self.samples[min(above, len(sizes) - 1)].time_s
        low, high = self.samples[above - 1], self.samples[above]
        share = (size_bytes - low.size_bytes) / (high.size_bytes - low.size_bytes)
        return low.time_s + share * (high.time_s - low.time_s)


FREE_ADDITION: Final = Addition((AdditionSample(0, 0.0),))
"""Adding costs nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRing:
    """A ring all-reduce that fills its links: 2 (N-1)/N of the bytes cross each, and N-1 of its steps add a part."""

    num_workers: int
    rate_bps: float
    compression_ratio: float = 1.0
    """Of the bytes on the wire alone: encoding costs nothing, and sums are of values that are not compressed."""
    addition: Addition = FREE_ADDITION

    def time_s(self, size_bytes: int) -> float:
        """The time of one all-reduce of that many bytes."""
        others = self.num_workers - 1
        wire_s = 2 * 8 * size_bytes * others / self.num_workers / (self.rate_bps * self.compression_ratio)
        return wire_s + others * self.addition.time_s(size_bytes / self.num_workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAggregation:
    """A switch that sums at line rate: every byte crosses a worker's link once in each direction, both at once, however
    many workers there are (Sapio et al. 2021, "Scaling Distributed Machine Learning with In-Network
    Aggregation", NSDI)."""

    rate_bps: float
    compression_ratio: float = 1.0

    def time_s(self, size_bytes: int) -> float:
        """The time of one all-reduce of that many bytes."""
        return 8 * size_bytes / (self.rate_bps * self.compression_ratio)


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """The answer for one network."""

    exchanges: tuple[Exchange, ...]
    iteration_s: float
    """With communication."""
    scaling_factor: float
    """An iteration of a worker alone over this one: T_n / (n T_1)."""
    busy_share: float
    """Of the iteration, time in which an exchange was under way."""


def what_if(table: LayerTable, allreduce_s: Callable[[int], float], fusion: ByTime | None = None) -> WhatIf:
    """One iteration of a trace when an all-reduce of n bytes takes `allreduce_s(n)`. Its input, of which the source has
    none, is read and copied while the batch before is computed with."""
    exchanges = in_turn((fusion or ByTime()).buckets(table.gradients()), allreduce_s)
    iteration_s = max(table.compute_s + exposed_s(exchanges, table.backward_s), table.input_and_copy_s)
    return WhatIf(
        exchanges=exchanges,
        iteration_s=iteration_s,
        scaling_factor=max(table.compute_s, table.input_and_copy_s) / iteration_s,
        busy_share=sum(exchange.end_s - exchange.start_s for exchange in exchanges) / iteration_s,
    )


def smallest_factor(
    scaling_factor_at: Callable[[float], float], target: float, *, tolerance: float = 1e-3, most: float = MAX_FACTOR
) -> float | None:
    """The smallest factor from 1 to `most` with which the scaling factor is at least `target`: of the compression
    ratio, of the rate, of the batch. At most `tolerance` of itself too large; None if there is none.

    A larger factor may scale worse, where gradients fall into other cycles: factors are tried one by one, each 1 %
    larger than the one before.
    """
    low = high = 1.0
    while scaling_factor_at(high) < target:
        if high >= most:
            return None
        low, high = high, min(high * _STEP, most)
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if scaling_factor_at(middle) >= target:
            high = middle
        else:
            low = middle
    return high


def read_addition(lines: Sequence[str]) -> Addition:
    """From lines `bytes,seconds`, ascending, as in the source's `cuda_vec_add.log`. Raises ValueError for the line that
    is anything else."""
    samples: list[AdditionSample] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            size_bytes, time_s = line.split(",")
            sample = AdditionSample(int(size_bytes), float(time_s))
        except ValueError as error:
            raise ValueError(f"line {number}: {line.strip()!r} is not `bytes,seconds`") from error
        if samples and sample.size_bytes <= samples[-1].size_bytes:
            raise ValueError(f"line {number}: sizes must ascend")
        samples.append(sample)
    if not samples:
        raise ValueError("there are no samples")
    return Addition(tuple(samples))
