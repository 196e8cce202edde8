"""What a collective moves, from its schedule alone: bytes and messages per peer, the least time for them, its result.

How long it takes is `timing.py`'s to say.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from transports.collectives.base import Buffer, Chunk, Collective, Operation, Step, World, reach
from transports.collectives.schedules.dependencies import Dependencies, dependencies
from transports.collectives.schedules.expanded import schedules
from transports.errors import TransportError

Array = npt.NDArray[Any]


class DeadlockError(TransportError):
    """A schedule whose participants wait for each other for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficCount:
    """What one participant sends to one peer."""

    payload_bytes: int
    """Elements only; the channel adds `header_bytes` per message."""
    num_messages: int


def sent_bytes(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    *,
    root: int = 0,
) -> dict[tuple[int, int], TrafficCount]:
    """What each (participant, peer) pair carries in that direction; pairs that carry nothing are absent."""
    counts: dict[tuple[int, int], list[int]] = {}
    every = schedules(collective, operation, world, num_elements, element_bytes, root=root)
    for participant, steps in enumerate(every):
        for step in steps:
            if step.kind == "send":
                counts.setdefault((participant, step.peer), []).append(step.chunk.count)
    return {
        pair: TrafficCount(payload_bytes=sum(messages) * element_bytes, num_messages=len(messages))
        for pair, messages in counts.items()
    }


_SHARE: Final[dict[Operation, Callable[[int], float]]] = {
    "all_reduce": lambda num_workers: 2 * (num_workers - 1) / num_workers,
    "reduce_scatter": lambda num_workers: (num_workers - 1) / num_workers,
    "all_gather": lambda num_workers: (num_workers - 1) / num_workers,
    "broadcast": lambda num_workers: float(num_workers > 1),
    "barrier": lambda _: 0.0,
    "reduce": lambda num_workers: float(num_workers > 1),
    "gather": lambda num_workers: (num_workers - 1) / num_workers,
    "scatter": lambda num_workers: (num_workers - 1) / num_workers,
    "all_to_all": lambda num_workers: (num_workers - 1) / num_workers,
}


def bus_factor(operation: Operation, num_workers: int) -> float:
    """Of the larger buffer, what the busiest link must carry in one direction: bus over algorithm bandwidth in
    nccl-tests (doc/PERFORMANCE.md)."""
    return _SHARE[operation](num_workers)


def bound_s(operation: Operation, *, world: World, size_bytes: int, goodput_bps: float) -> float:
    """The least time on full-duplex links of that goodput, one per participant, without help from the network.

    For all-reduce 2(N-1)/N x S x 8 / goodput: every worker must send, and receive, that much (Patarasuk and Yuan,
    JPDC 69, 2009). With k servers, to which workers send and nobody else, max(1, N/k) x S x 8 / goodput: every worker
    must send its values and receive the result, and a server's link carries what N workers send it of an even share
    (Li et al., OSDI 2014). `size_bytes` is the larger buffer.
    """
    share = bus_factor(operation, world.num_workers)
    if operation == "all_reduce" and world.num_servers:
        share = max(1.0, world.num_workers / world.num_servers)
    return share * size_bytes * 8 / goodput_bps


class Progress:
    """Which steps are ready: their predecessors are done and it is their turn in their lane."""

    def __init__(self, steps: Sequence[Step], order: Dependencies) -> None:
        self.steps = steps
        self.order = order
        self.waiting = list(order.num_predecessors)
        self.lanes = {lane: deque(indices) for lane, indices in order.lanes.items()}
        self.num_left = len(steps)

    def done(self, index: int) -> None:
        """That step is: later ones wait for one thing less."""
        for later in self.order.successors[index]:
            self.waiting[later] -= 1
        self.num_left -= 1


def interpret(
    every: Sequence[Sequence[Step]], buffers: Sequence[Mapping[Buffer, Array]], *, reduce: np.ufunc = np.add
) -> int:
    """Run all participants' schedules in numpy, in place on their buffers; returns the number of messages.

    A message moves when its send is ready and its receive is, or, if it is to be added, when the one before it in its
    lane has been: the executor too keeps what is to be added aside until it may be. No channel has less room than that,
    so a schedule that ends here ends on every channel. Raises DeadlockError when nothing can move, or when a message's
    length is not what its receiver expects.
    """
    members = [
        _Member(steps, {**given, "scratch": _scratch(steps, given)}, reduce)
        for steps, given in zip(every, buffers, strict=True)
    ]
    pairs = [(sender, peer) for sender, member in enumerate(members) for peer, way in member.lanes if way == "send"]
    num_messages = 0
    moved = True
    while moved:
        moved = sum(member.settle() for member in members) > 0
        for sender, receiver in pairs:
            while members[sender].may_send(receiver) and members[receiver].may_receive(sender):
                members[receiver].receive(sender, members[sender].send(receiver))
                num_messages += 1
                moved = True
    stuck = [number for number, member in enumerate(members) if member.num_left]
    if stuck:
        raise DeadlockError(f"participants {stuck} wait for each other or for a message that is never sent")
    return num_messages


def _scratch(steps: Sequence[Step], buffers: Mapping[Buffer, Array]) -> Array:
    return np.empty(reach(steps, "scratch"), dtype=next(iter(buffers.values())).dtype)


class _Member(Progress):
    """A participant of the interpreter."""

    def __init__(self, steps: Sequence[Step], buffers: Mapping[Buffer, Array], reduce: np.ufunc) -> None:
        super().__init__(steps, dependencies(steps))
        self._buffers = buffers
        self._reduce = reduce
        self._local = [index for index, step in enumerate(steps) if step.kind == "add"]
        self._aside: dict[int, Array] = {}

    def settle(self) -> bool:
        """Add whatever is ready to be added; whether anything was."""
        ready = [index for index in (*self._local, *self._aside) if not self.waiting[index]]
        for index in ready:
            source = self.steps[index].source
            values = self._aside.pop(index) if source is None else self._place(source)
            self._reduce(place := self._place(self.steps[index].chunk), values, out=place)
            self.done(index)
        self._local = [index for index in self._local if index not in ready]
        return bool(ready)

    def may_send(self, peer: int) -> bool:
        lane = self.lanes[peer, "send"]
        return bool(lane) and not self.waiting[lane[0]]

    def send(self, peer: int) -> Array:
        index = self.lanes[peer, "send"].popleft()
        self.done(index)
        return self._place(self.steps[index].chunk).copy()

    def may_receive(self, peer: int) -> bool:
        lane = self.lanes.get((peer, "receive"))
        if not lane or any(self.steps[index].peer == peer for index in self._aside):
            return False
        return self.steps[lane[0]].kind == "reduce" or not self.waiting[lane[0]]

    def receive(self, peer: int, values: Array) -> None:
        index = self.lanes[peer, "receive"].popleft()
        step = self.steps[index]
        if step.chunk.count != len(values):
            raise DeadlockError(f"{step} meets a message of {len(values)} elements: they differ in length")
        if step.kind == "reduce":
            self._aside[index] = values
        else:
            self._place(step.chunk)[:] = values
            self.done(index)

    def _place(self, chunk: Chunk) -> Array:
        return self._buffers[chunk.buffer][chunk.start : chunk.start + chunk.count]
