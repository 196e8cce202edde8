"""The reference data plane: the aggregator core on a UDP socket. Readable, complete, good to some 10,000 chunks/s."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Protocol

from switch_agg.aggregator import Aggregator, Counters, Stragglers
from switch_agg.core import Address, Core, Datagram
from switch_agg.dataplanes.base import DataPlane, DataPlaneKind, Program, register
from switch_agg.driver import Service, open_socket
from switch_agg.epochs import Epochs
from switch_agg.faults import Direction, Fate, FaultInjector, Faults
from switch_agg.job import Job
from switch_agg.wire import CARRYING, HEADER


class CountingCore(Core, Protocol):
    """A core that counts what comes to it."""

    counters: Counters


class FaultyCore:
    """An aggregator's core behind a stretch of network on which requested faults happen; implements Core.

    A corrupted datagram is one that the receiver's checksum drops.
    """

    def __init__(self, aggregator: CountingCore, about: Callable[[Datagram], tuple[int | None, int]]) -> None:
        """`about` returns the worker and the chunk of a datagram with elements, and (None, 0) of others, to which
        nothing happens."""
        self._aggregator = aggregator
        self._about = about
        self._injector: FaultInjector | None = None
        self._held: dict[tuple[Direction, str], Datagram] = {}

    def inject(self, faults: Faults) -> None:
        """See DataPlane."""
        self._injector = FaultInjector(faults)

    def forget_held(self) -> None:
        """Datagrams that were held back are lost."""
        self._held.clear()

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """See Core."""
        self._aggregator.receive(self._pass("up", datagrams), now_s)

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """See Core."""
        return self._pass("down", self._aggregator.transmit(now_s))

    def deadline_s(self) -> float | None:
        """See Core."""
        return self._aggregator.deadline_s()

    def expire(self, now_s: float) -> None:
        """See Core."""
        self._aggregator.expire(now_s)

    def _pass(self, direction: Direction, datagrams: Iterable[Datagram]) -> list[Datagram]:
        if self._injector is None:
            return list(datagrams)
        passed: list[Datagram] = []
        for datagram in datagrams:
            worker, chunk = self._about(datagram)
            fate = Fate() if worker is None else self._injector.fate(direction, worker, chunk)
            key = (direction, datagram.peer[0])
            if fate.copies == 0 or fate.corrupt_bit is not None:
                if direction == "up":
                    self._aggregator.counters.rx += 1
                    self._aggregator.counters.injected += 1
            elif fate.held and key not in self._held:
                self._held[key] = datagram
                continue
            else:
                passed += [datagram] * fate.copies
            overtaken = self._held.pop(key, None)
            if overtaken is not None:
                passed.append(overtaken)
        return passed


def _about(aggregator: Aggregator, datagram: Datagram) -> tuple[int | None, int]:
    """See FaultyCore."""
    if len(datagram.data) <= HEADER.size or datagram.data[0] >> 4 not in CARRYING:
        return None, 0
    number = datagram.data[1] >> 4
    for job in aggregator.jobs:
        if job.number == number and datagram.peer[0] in job.workers:
            return job.workers.index(datagram.peer[0]), int.from_bytes(datagram.data[2:6], "big")
    return None, 0


class ReferenceDataPlane:
    """Implements switch_agg.dataplanes.base.DataPlane with a thread of its own."""

    def __init__(self, local: Address, *, generation: int, epochs: Epochs | None = None) -> None:
        """Begins to serve at once; see Aggregator. Raises OSError when the address cannot be had."""
        self._aggregator = Aggregator(generation=generation, epochs=epochs)
        self._faulty = FaultyCore(self._aggregator, partial(_about, self._aggregator))
        opened = open_socket(local)
        self.address: Address = opened.getsockname()
        self._service = Service(self._faulty, opened, name="aggregator")

    @property
    def jobs(self) -> tuple[Job, ...]:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.jobs

    def configure(self, job: Job) -> None:
        """See DataPlane."""
        with self._service.lock:
            self._aggregator.configure(job)

    def remove(self, number: int) -> None:
        """See DataPlane."""
        with self._service.lock:
            self._aggregator.remove(number)

    def reset(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.reset(number)

    def inject(self, faults: Faults) -> None:
        """See DataPlane."""
        with self._service.lock:
            self._faulty.inject(faults)

    def counters(self) -> Counters:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.counters.copy()

    def unsent(self) -> Mapping[str, int]:
        """See DataPlane."""
        with self._service.lock:
            return self._service.unsent()

    def in_flight(self) -> int:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.in_flight

    def stragglers(self, number: int) -> Stragglers:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.stragglers(number)

    def busy_slots(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.busy_slots(number)

    def epoch(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            return self._aggregator.membership(number)[0]

    def check(self) -> None:
        """See DataPlane."""
        self._service.check()

    def close(self) -> None:
        """See DataPlane."""
        self._service.close()


@register
class Reference(DataPlaneKind):
    """A process beside the switch."""

    has_clock: ClassVar[bool] = True
    serves_switchml: ClassVar[bool] = True

    @classmethod
    def open(
        cls,
        local: Address,
        *,
        generation: int,
        epochs: Epochs | None,
        program: Program | None,  # noqa: ARG003 (it is no program)
    ) -> DataPlane:
        """See DataPlaneKind."""
        return ReferenceDataPlane(local, generation=generation, epochs=epochs)
