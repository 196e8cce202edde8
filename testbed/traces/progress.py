"""How far a rank has come in its part of a graph: what may be started now. Pure."""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from testbed.traces.graph import Compute, Node, lane


class ReadyCompute(NamedTuple):
    """Computing that waits for the device alone."""

    number: int
    since_s: float


class Progress:
    """Of one iteration. Moments are the caller's, on any clock."""

    def __init__(self, nodes: Sequence[Node], begun_s: float) -> None:
        self._nodes = nodes
        self._waited = [len(node.after) for node in nodes]
        self._ready_s = [begun_s] * len(nodes)
        self._successors: dict[int, list[int]] = defaultdict(list)
        self._lanes: dict[Hashable, deque[int]] = defaultdict(deque)
        self._exchanges: deque[int] = deque()
        self._computes: deque[ReadyCompute] = deque()
        self._num_left = len(nodes)
        for number, node in enumerate(nodes):
            for before in node.after:
                self._successors[before].append(number)
            if (key := lane(node)) is not None:
                self._lanes[key].append(number)
        for number, waited in enumerate(self._waited):
            if not waited:
                self._ready(number)

    @property
    def finished(self) -> bool:
        """Whether every node has ended."""
        return not self._num_left

    def next_exchange(self) -> int | None:
        """The number of an exchange to be started now, each once; None: of none at present."""
        return self._exchanges.popleft() if self._exchanges else None

    def next_compute(self) -> ReadyCompute | None:
        """What the device, which is free, computes now; None: nothing at present."""
        return self._computes.popleft() if self._computes else None

    def ended(self, number: int, at_s: float) -> None:
        """The node has ended."""
        self._num_left -= 1
        for following in self._successors[number]:
            self._ready_s[following] = max(self._ready_s[following], at_s)
            self._waited[following] -= 1
            if not self._waited[following]:
                self._ready(following)

    def _ready(self, number: int) -> None:
        node = self._nodes[number]
        if isinstance(node, Compute):
            self._computes.append(ReadyCompute(number, self._ready_s[number]))
            return
        turn = self._lanes[lane(node)]
        while turn and not self._waited[turn[0]]:
            self._exchanges.append(turn.popleft())
