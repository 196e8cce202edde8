"""Runs protocol cores on a network of virtual time: loss, duplication, corruption and reordering from one seed.

The same seed replays the same run, datagram by datagram, so a seed that fails is a bug report.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from switch_agg.core import Address, Core, Datagram
from switch_agg.errors import AggregationError
from switch_agg.faults import corrupt

MAX_EVENTS: Final = 2_000_000
ETHERNET_IP_UDP_BYTES: Final = 14 + 20 + 8


class StuckError(AggregationError):
    """The simulated run did not come to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What happens to every datagram on its way."""

    delay_s: float = 1e-4
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    """One bit turned over; UDP's checksum drops such a datagram, so this asks what would happen without it."""
    reorder: float = 0.0
    """The share that is held up, for an exponentially distributed time."""
    hold_up_s: float = 5e-3
    """Its mean. The distribution has no bound, and neither has the reordering."""
    rate_bps: float | None = None
    """Of the link from each to each; None: whatever is sent leaves at once."""
    queue_bytes: int = 10**6
    """What waits in front of such a link; more is dropped."""
    stall_s: float = 0.0
    """The mean time for which the scheduler keeps a host away, exponentially distributed: what arrives meanwhile it
    finds all at once."""
    between_stalls_s: float = 0.05
    """The mean time from one to the next."""


class Simulator:
    """Cores by address, and the network between them."""

    def __init__(self, cores: Mapping[Address, Core], network: Network, *, seed: int) -> None:
        self.now_s = 0.0
        self.cores = dict(cores)
        self.network = network
        self._random = random.Random(seed)
        self._order = itertools.count()
        self._arriving: list[tuple[float, int, Address, Datagram]] = []
        self._idle_s: dict[tuple[Address, Address], float] = {}
        self._chance_of_stalls = random.Random(seed)
        self._stalls: dict[Address, tuple[float, float]] = {}
        self._unread: dict[Address, list[tuple[float, Datagram]]] = {address: [] for address in cores}
        self._deadlines_s: dict[Address, float | None] = {}
        """Of the cores, each since it was last driven: asking all of them before every event took most of the time."""
        self.num_dropped = 0
        """For want of room in a queue."""

    def run(self, until: Callable[[], bool], *, limit_s: float = 3600.0) -> None:
        """Let time pass until the condition holds. Raises StuckError when it does not within the limit."""
        for address in self.cores:
            self._transmit(address)
        for _ in range(MAX_EVENTS):
            if until():
                return
            if not self._next(limit_s):
                break
        raise StuckError(f"not finished after {self.now_s:.3f} simulated seconds")

    def run_for(self, duration_s: float) -> None:
        """Let that much time pass, whatever happens in it."""
        end_s = self.now_s + duration_s
        for address in self.cores:
            self._transmit(address)
        while self._next(end_s):
            pass
        self.now_s = end_s

    def restart(self, address: Address, core: Core) -> None:
        """The process at that address dies and another begins; what is under way to it arrives at the new one."""
        self.cores[address] = core
        self._unread[address] = []
        self._transmit(address)

    def touch(self, address: Address) -> None:
        """A core was changed from outside, which nobody else says: send what it has to, and ask for its deadline."""
        self._transmit(address)

    def _next(self, limit_s: float) -> bool:
        """The next arrival or deadline. False when there is none within the limit."""
        wishes = ((self._wishes_s(address), address) for address in self.cores)
        due = min(((when, address) for when, address in wishes if when is not None), default=None)
        arrival_s = self._arriving[0][0] if self._arriving else None
        if due is not None and (arrival_s is None or due[0] < arrival_s):
            if due[0] > limit_s:
                return False
            self.now_s, address = max(self.now_s, due[0]), due[1]
            self._read(address)
            deadline_s = self.cores[address].deadline_s()
            if deadline_s is not None and deadline_s <= self.now_s:
                self.cores[address].expire(self.now_s)
        elif arrival_s is not None and arrival_s <= limit_s:
            self.now_s, _, address, datagram = heapq.heappop(self._arriving)
            self._unread[address].append((self.now_s, datagram))
            if self._runs_s(address, self.now_s) > self.now_s:
                return True
            self._read(address)
        else:
            return False
        self._transmit(address)
        return True

    def _read(self, address: Address) -> None:
        unread, self._unread[address] = self._unread[address], []
        if unread:
            found = [datagram._replace(age_s=self.now_s - arrived_s) for arrived_s, datagram in unread]
            self.cores[address].receive(found, self.now_s)

    def _wishes_s(self, address: Address) -> float | None:
        """When the host wants to run and is let."""
        deadline_s = self.now_s if self._unread[address] else self._deadlines_s[address]
        return None if deadline_s is None else self._runs_s(address, max(deadline_s, self.now_s))

    def _runs_s(self, address: Address, when_s: float) -> float:
        """That time, or the end of the stall that it falls in."""
        if not self.network.stall_s:
            return when_s
        start_s, end_s = self._stalls.get(address, (0.0, 0.0))
        while end_s <= when_s:
            start_s = end_s + self._chance_of_stalls.expovariate(1 / self.network.between_stalls_s)
            end_s = start_s + self._chance_of_stalls.expovariate(1 / self.network.stall_s)
            self._stalls[address] = (start_s, end_s)
        return end_s if start_s <= when_s else when_s

    def _transmit(self, sender: Address) -> None:
        for datagram in self.cores[sender].transmit(self.now_s):
            if not self._leaves(sender, datagram):
                continue
            if datagram.peer not in self.cores or self._random.random() < self.network.loss:
                continue
            for _ in range(2 if self._random.random() < self.network.duplicate else 1):
                self._send(sender, datagram)
        self._deadlines_s[sender] = self.cores[sender].deadline_s()

    def _leaves(self, sender: Address, datagram: Datagram) -> bool:
        """Whether the link takes it: at once, or when those before it have left."""
        if self.network.rate_bps is None:
            return True
        link = sender, datagram.peer
        idle_s = max(self._idle_s.get(link, 0.0), self.now_s)
        wire_bytes = len(datagram.data) + ETHERNET_IP_UDP_BYTES
        if (idle_s - self.now_s) * self.network.rate_bps / 8 + wire_bytes > self.network.queue_bytes:
            self.num_dropped += 1
            return False
        self._idle_s[link] = idle_s + wire_bytes * 8 / self.network.rate_bps
        return True

    def _send(self, sender: Address, datagram: Datagram) -> None:
        network, data = self.network, datagram.data
        if network.corrupt and self._random.random() < network.corrupt:
            data = corrupt(data, self._random.getrandbits(16))
        delay_s = network.delay_s + max(0.0, self._idle_s.get((sender, datagram.peer), 0.0) - self.now_s)
        if network.reorder and self._random.random() < network.reorder:
            delay_s += self._random.expovariate(1 / network.hold_up_s)
        arrival = (self.now_s + delay_s, next(self._order), datagram.peer, Datagram(sender, data))
        heapq.heappush(self._arriving, arrival)
