"""Which gradients travel together, and when each bucket is exchanged, if one exchange is under way at a time."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from testbed.traces.table import Gradient
from transports.torch_backend.ordering import ELEMENT_BYTES, Item, Order, Timed


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

    A gradient is never divided. What closes a bucket is :meth:`buckets` in the paper's model, and
    :func:`joined_in_turn` in an engine.
    """

    cycle_s: float = 5e-3
    """Horovod's up to version 0.20; 1 ms since 0.21."""
    buffer_bytes: int = 64 * 2**20
    """Likewise; 128 MiB since 0.21."""

    def buckets(self, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
        """Buckets in the order in which they are closed, each ready with its last gradient.

        After `simulation/sim_with_compression_comm.py` of github.com/netx-repo/training-bottleneck: the cycle counts
        time of backward since the last bucket was closed, however far behind the exchanges are.
        """
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


class Look(NamedTuple):
    """An engine's look at what is ready, and what goes out then."""

    looks_s: tuple[float, ...]
    """When each worker looks, since the beginning of the iteration."""
    waited: bool
    """Whether something was ready before all had looked: communication, or a cycle, was under way."""
    runs: tuple[Sequence[int], ...]
    """Numbers of items, neighbours; each run is a bucket."""


class Looks:
    """Look after look at what is ready, as an engine that joins it does (`transports/torch_backend/engine.py`). It
    begins with no cycle under way."""

    def __init__(self, order: Order, items: Sequence[Item], ready_s: Sequence[float], factors: Sequence[float]) -> None:
        """`ready_s` of each item ascends, since the beginning of the iteration; workers take `factors` times as
        long."""
        self._order, self._items, self._ready_s, self._factors = order, items, ready_s, factors
        self._num_done = 0
        self._next_s = [0.0] * len(factors)

    @property
    def done(self) -> bool:
        """Whether everything has gone out."""
        return self._num_done == len(self._items)

    def look(self, free_s: Sequence[float]) -> Look:
        """The next one, where each worker's communication thread is free from then on.

        A worker looks when it has the next item, its thread is free and a cycle has passed since it looked before. What
        goes out is what all have ready then; the next item always is.
        """
        first = self._num_done
        ready_s = [self._ready_s[first] * factor for factor in self._factors]
        looks_s = tuple(map(max, free_s, ready_s, self._next_s))
        self._next_s = [look_s + self._order.cycle_s for look_s in looks_s]
        self._num_done = min(
            bisect_right(self._ready_s, look_s, key=lambda each_s: each_s * factor)
            for look_s, factor in zip(looks_s, self._factors, strict=True)
        )
        runs = self._order.choose(range(first, self._num_done), self._items)
        return Look(looks_s, max(looks_s) > max(ready_s), tuple(runs))


def joined_in_turn(
    gradients: Sequence[Gradient], fusion: ByTime, exchange_s: Callable[[int], float], *, agreement_s: float = 0.0
) -> tuple[Exchange, ...]:
    """Exchange gradients one bucket after the other, each `exchange_s(size_bytes)` long and of all that is ready when
    a cycle is over and the exchange before it done; before what goes out then, workers agree on it for `agreement_s`.
    Every gradient by itself where cycles last no time; where they never end, buckets of a size, whenever one is full:
    of these all know beforehand."""
    if fusion.cycle_s in (0.0, inf):
        return in_turn(fusion.buckets(gradients), exchange_s)
    stops = accumulate((-(-size_bytes // ELEMENT_BYTES) for _, size_bytes in gradients), initial=0)
    items = [Item(*borders) for borders in pairwise(stops)]
    order = Timed(bucket_bytes=fusion.buffer_bytes, cycle_s=fusion.cycle_s)
    looks = Looks(order, items, [ready_s for ready_s, _ in gradients], (1.0,))
    exchanges: list[Exchange] = []
    free_s = 0.0
    while not looks.done:
        (looks_s,), _, runs = looks.look((free_s,))
        start_s = looks_s + agreement_s
        for run in runs:
            size_bytes = sum(gradients[number].size_bytes for number in run)
            free_s = start_s + exchange_s(size_bytes)
            exchanges.append(Exchange(gradients[run[-1]].ready_s, start_s, free_s, size_bytes))
            start_s = free_s
    return tuple(exchanges)
