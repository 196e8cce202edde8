"""Which gradients travel together, and when each bucket is exchanged, if one exchange is under way at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.traces.table import Gradient


class Exchange(NamedTuple):
    """One bucket's exchange."""

    ready_s: float
    """Since the beginning of backward, as all times here."""
    start_s: float
    end_s: float
    size_bytes: int


def in_turn(buckets: Iterable[Gradient], exchange_s: Callable[[int], float]) -> tuple[Exchange, ...]:
    """Exchange buckets one after the other as they become ready, each `exchange_s(size_bytes)` long.

    The recursion of wait-free backpropagation: start(k) = max(ready(k), end(k-1)) (Zhang et al. 2017, "Poseidon").
    """
    exchanges: list[Exchange] = []
    free_s = 0.0
    for ready_s, size_bytes in buckets:
        start_s = max(ready_s, free_s)
        free_s = start_s + exchange_s(size_bytes)
        exchanges.append(Exchange(ready_s, start_s, free_s, size_bytes))
    return tuple(exchanges)


def exposed_s(exchanges: Sequence[Exchange], backward_s: float) -> float:
    """The part of the exchanges that backward does not hide: what an iteration waits for."""
    return max(0.0, exchanges[-1].end_s - backward_s) if exchanges else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ByTime:
    """Gradients wait for others until a cycle is over or a buffer is full, as in Horovod.

    After `simulation/sim_with_compression_comm.py` of github.com/netx-repo/training-bottleneck: the cycle counts time
    of backward since the last bucket was closed, and a gradient is never divided.
    """

    cycle_s: float = 5e-3
    """Horovod's up to version 0.20; 1 ms since 0.21."""
    buffer_bytes: int = 64 * 2**20
    """Likewise; 128 MiB since 0.21."""

    def buckets(self, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
        """Buckets in the order in which they are closed, each ready with its last gradient."""
        buckets: list[Gradient] = []
        closed_s = 0.0
        filled_bytes = 0
        for number, (ready_s, size_bytes) in enumerate(gradients):
            filled_bytes += size_bytes
            last = number == len(gradients) - 1
            if ready_s - closed_s >= self.cycle_s or filled_bytes >= self.buffer_bytes or last:
                buckets.append(Gradient(ready_s, filled_bytes))
                closed_s, filled_bytes = ready_s, 0
        return tuple(buckets)
