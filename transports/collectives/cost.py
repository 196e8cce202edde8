"""What a collective costs, from its schedule alone: bytes and messages per peer, its result, its time.

Fitting alpha and beta to measurements, and mapping peers to links, is left to `testbed.predict`.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from transports.collectives.base import Buffer, Collective, Operation, Step, World
from transports.collectives.dependencies import Dependencies, dependencies
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


def schedules(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    *,
    root: int = 0,
) -> list[Sequence[Step]]:
    """Every participant's steps."""
    return [
        collective.schedule(operation, world, participant, num_elements, element_bytes=element_bytes, root=root)
        for participant in range(world.size)
    ]


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
}


def bound_s(operation: Operation, *, num_workers: int, size_bytes: int, goodput_bps: float) -> float:
    """The least time on full-duplex links of that goodput, one per worker, without help from the network.

    For all-reduce 2(N-1)/N x S x 8 / goodput: every worker must send, and receive, that much (Patarasuk and Yuan,
    JPDC 69, 2009). `size_bytes` is the larger buffer.
    """
    return _SHARE[operation](num_workers) * size_bytes * 8 / goodput_bps


class _Progress:
    """Which steps are ready: their predecessors are done and it is their turn in their lane."""

    def __init__(self, steps: Sequence[Step], order: Dependencies) -> None:
        self.steps = steps
        self.order = order
        self.waiting = list(order.num_predecessors)
        self.lanes = {lane: deque(indices) for lane, indices in order.lanes.items()}
        self.num_left = len(steps)

    def done(self, index: int) -> None:
        for later in self.order.successors[index]:
            self.waiting[later] -= 1
        self.num_left -= 1


def interpret(
    every: Sequence[Sequence[Step]], buffers: Sequence[Mapping[Buffer, Array]], *, reduce: np.ufunc = np.add
) -> int:
    """Run all participants' schedules in numpy, in place on their buffers; returns the number of messages.

    A message moves when its send and the matching receive are both ready, as if no channel had any buffer, so a
    schedule that ends here ends on every channel. Raises DeadlockError when nothing can move, or when a message's
    length is not what its receiver expects.
    """
    members = [_Progress(steps, dependencies(steps)) for steps in every]
    pairs = [(sender, peer) for sender, member in enumerate(members) for peer, way in member.lanes if way == "send"]
    num_messages = 0
    moved = True
    while moved:
        moved = False
        for sender, receiver in pairs:
            sends = members[sender].lanes[receiver, "send"]
            receives = members[receiver].lanes.get((sender, "receive"), deque())
            while sends and receives:
                if members[sender].waiting[sends[0]] or members[receiver].waiting[receives[0]]:
                    break
                sent, received = sends.popleft(), receives.popleft()
                _move(every[sender][sent], every[receiver][received], buffers[sender], buffers[receiver], reduce)
                members[sender].done(sent)
                members[receiver].done(received)
                num_messages += 1
                moved = True
    stuck = [number for number, member in enumerate(members) if member.num_left]
    if stuck:
        raise DeadlockError(f"participants {stuck} wait for each other or for a message that is never sent")
    return num_messages


def _move(
    sent: Step,
    received: Step,
    source: Mapping[Buffer, Array],
    target: Mapping[Buffer, Array],
    reduce: np.ufunc,
) -> None:
    if sent.chunk.count != received.chunk.count:
        raise DeadlockError(f"{sent} meets {received}: they differ in length")
    values = source[sent.chunk.buffer][sent.chunk.start : sent.chunk.start + sent.chunk.count]
    place = target[received.chunk.buffer][received.chunk.start : received.chunk.start + received.chunk.count]
    if received.kind == "reduce":
        reduce(place, values, out=place)
    else:
        place[:] = values


def alpha_beta_time_s(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    *,
    alpha_s: float,
    beta_s_per_byte: float,
    gamma_s_per_byte: float = 0.0,
    root: int = 0,
) -> float:
    """The time of the operation in the alpha-beta-gamma model (Hockney, Parallel Computing 20, 1994).

    Each participant has one full-duplex link. A message occupies its sender's uplink for bytes x beta, then, alpha
    later, its receiver's downlink for as long; messages share neither. Alpha is latency: it passes while the link
    carries the next message. Adding costs gamma per byte, one message at a time per participant.
    """
    every = schedules(collective, operation, world, num_elements, element_bytes, root=root)
    return _Timeline(every, element_bytes, alpha_s, beta_s_per_byte, gamma_s_per_byte).run()


class _Timeline:
    """A discrete-event simulation of schedules: events are (time, order of creation, what happens)."""

    def __init__(
        self,
        every: Sequence[Sequence[Step]],
        element_bytes: int,
        alpha_s: float,
        beta_s: float,
        gamma_s: float,
    ) -> None:
        self._every = every
        self._element_bytes = element_bytes
        self._alpha_s, self._beta_s, self._gamma_s = alpha_s, beta_s, gamma_s
        self._members = [_Progress(steps, dependencies(steps)) for steps in every]
        self._up_free_s = [0.0] * len(every)
        self._down_free_s = [0.0] * len(every)
        self._adder_free_s = [0.0] * len(every)
        self._num_arrived: dict[tuple[int, int], int] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._now_s = 0.0

    def run(self) -> float:
        for number, member in enumerate(self._members):
            for lane in member.lanes:
                self._advance(number, lane[0], sends=lane[1] == "send")
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
        stuck = [number for number, member in enumerate(self._members) if member.num_left]
        if stuck:
            raise DeadlockError(f"participants {stuck} wait for each other or for a message that is never sent")
        return self._now_s

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, self._num_events, happen))
        self._num_events += 1

    def _advance(self, number: int, peer: int, *, sends: bool) -> None:
        """Start whatever is next in a lane and ready."""
        member = self._members[number]
        lane = member.lanes.get((peer, "send" if sends else "receive"))
        while lane and not member.waiting[lane[0]]:
            if sends:
                self._send(number, peer, lane.popleft())
            elif self._num_arrived.get((peer, number), 0):
                self._num_arrived[peer, number] -= 1
                self._receive(number, lane.popleft())
            else:
                return

    def _send(self, number: int, peer: int, index: int) -> None:
        occupied_s = self._every[number][index].chunk.count * self._element_bytes * self._beta_s
        left_s = max(self._now_s, self._up_free_s[number]) + occupied_s
        self._up_free_s[number] = left_s
        arrives_s = max(left_s - occupied_s + self._alpha_s, self._down_free_s[peer]) + occupied_s
        self._down_free_s[peer] = arrives_s
        self._at(left_s, lambda: self._done(number, index))
        self._at(arrives_s, lambda: self._arrive(number, peer))

    def _arrive(self, sender: int, receiver: int) -> None:
        self._num_arrived[sender, receiver] = self._num_arrived.get((sender, receiver), 0) + 1
        self._advance(receiver, sender, sends=False)

    def _receive(self, number: int, index: int) -> None:
        step = self._every[number][index]
        ready_s = self._now_s
        if step.kind == "reduce":
            ready_s = max(ready_s, self._adder_free_s[number]) + step.chunk.count * self._element_bytes * self._gamma_s
            self._adder_free_s[number] = ready_s
        self._at(ready_s, lambda: self._done(number, index))

    def _done(self, number: int, index: int) -> None:
        member = self._members[number]
        member.done(index)
        for later in member.order.successors[index]:
            if not member.waiting[later]:
                step = self._every[number][later]
                self._advance(number, step.peer, sends=step.kind == "send")
