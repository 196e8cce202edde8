"""The data plane that serves p4app-switchML's clients: the program on every UDP port that its switch listens to."""

import logging
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.core import Address, Core, Datagram
from switch_agg.dataplanes.reference import FaultyCore
from switch_agg.driver import Driver, open_socket
from switch_agg.errors import JobError
from switch_agg.faults import Faults
from switch_agg.job import Job
from switch_agg.switchml.program import Membership, SwitchMLProgram
from switch_agg.switchml.wire import HEADER
from switch_agg.wire import PORTS

_WAKE_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


class SwitchMLDataPlane:
    """Implements switch_agg.dataplanes.base.DataPlane with a thread of its own; its one job is the clients' session."""

    def __init__(self, host: str) -> None:
        """Begins to serve at once. Raises OSError, whose `filename` is the port, when one of PORTS cannot be had."""
        self.host = host
        self._program = SwitchMLProgram()
        self._faulty = FaultyCore(self._program, self._about)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._outgoing: dict[int, list[Datagram]] = {port: [] for port in PORTS}
        self._unsent: Counter[str] = Counter()
        self._logged: set[tuple[str, int | None]] = set()
        self._sockets = _open(host)
        self._thread = threading.Thread(target=self._run, name="switchml", daemon=True)
        self._thread.start()

    # -- the session service ------------------------------------------------------------------------------------------

    def admit(self, member: Membership) -> None:
        """Take a worker into the session, or begin one. Raises JobError."""
        with self._lock:
            self._program.admit(member)
            if member.rank == 0:  # a sum of the session before looks like one of this one's
                self._drop_pending()

    @property
    def session(self) -> int | None:
        """The number of the session, which rank 0 has drawn; None when there is none."""
        with self._lock:
            return self._program.session

    # -- see DataPlane ------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The session, once all of its workers are known."""
        with self._lock:
            return self._program.jobs

    def configure(self, job: Job) -> None:
        """Raises JobError: clients make the one job that there is."""
        raise JobError(
            "this aggregator serves p4app-switchML's clients, who open their session themselves: "
            f"job {job.number} needs another, without --compatible, at another address"
        )

    def remove(self, number: int) -> None:
        """End the session; its clients' datagrams are counted as `bad_job` from now on."""
        with self._lock:
            self._program.stragglers(number)
            self._program.clear()
            self._drop_pending()

    def reset(self, number: int) -> int:
        """Raises JobError: p4app-switchML has no epochs."""
        raise JobError(f"p4app-switchML's clients know no epochs: `switch-agg remove {number}` ends their session")

    def inject(self, faults: Faults) -> None:
        """See DataPlane; `chunk` of a listed fault is the packet's id."""
        with self._lock:
            self._faulty.inject(faults)

    def counters(self) -> Counters:
        """See DataPlane."""
        with self._lock:
            return self._program.counters.copy()

    def unsent(self) -> Mapping[str, int]:
        """By host: datagrams to it that the machine refused to send."""
        with self._lock:
            return self._unsent.copy()

    def in_flight(self) -> int:
        """See DataPlane."""
        with self._lock:
            return self._program.in_flight

    def stragglers(self, number: int) -> Stragglers:
        """See DataPlane."""
        with self._lock:
            return self._program.stragglers(number)

    def busy_slots(self, number: int) -> int:
        """See DataPlane."""
        with self._lock:
            return self._program.busy_slots(number)

    def epoch(self, number: int) -> int:
        """Sessions that have begun. Raises JobError."""
        with self._lock:
            self._program.stragglers(number)
            return self._program.num_sessions

    def check(self) -> None:
        """See DataPlane."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """See DataPlane."""
        self._stopping.set()
        self._thread.join()
        for each in self._sockets.values():
            each.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _drop_pending(self) -> None:
        """What has not left yet, or was held back by a fault. The lock is held."""
        self._faulty.forget_held()
        for outgoing in self._outgoing.values():
            outgoing.clear()

    def _about(self, datagram: Datagram) -> tuple[int | None, int]:
        """See FaultyCore. Packet ids are in the byte order of the clients' processors."""
        if len(datagram.data) <= HEADER.size:
            return None, 0
        return self._program.rank_of(datagram.peer[0]), int.from_bytes(datagram.data[2:6], "little")

    def _run(self) -> None:
        drivers = {
            opened: Driver(_AtPort(self, port), opened, on_unsent=self._note_unsent)
            for port, opened in self._sockets.items()
        }
        try:
            while not self._stopping.is_set():
                ready, _, _ = select.select(list(drivers), [], [], _WAKE_S)
                for opened in ready:
                    drivers[opened].receive()
                for driver in drivers.values():  # workers of one slot may have sent to different ports
                    driver.transmit()
        except Exception as error:  # noqa: BLE001 - raised by check(), and nothing is served any more
            self._failure = error

    def _note_unsent(self, peer: Address, error: OSError) -> None:
        """A destination's failure is its own: the others are served."""
        with self._lock:
            self._unsent[peer[0]] += 1
        if (peer[0], error.errno) not in self._logged:
            self._logged.add((peer[0], error.errno))
            _LOG.warning("nothing can be sent to %s:%d: %s; others are served", *peer, error.strerror)

    def receive_at(self, port: int, datagrams: Iterable[Datagram], now_s: float) -> None:
        """Datagrams have come to a port."""
        with self._lock:
            self._faulty.receive([each._replace(local_port=port) for each in datagrams], now_s)
            for answer in self._faulty.transmit(now_s):
                self._outgoing[answer.local_port].append(answer)

    def take_outgoing(self, port: int) -> Sequence[Datagram]:
        """What leaves from that port now."""
        with self._lock:
            outgoing, self._outgoing[port] = self._outgoing[port], []
            return outgoing


class _AtPort(Core):
    """One port of the data plane, for a driver."""

    def __init__(self, plane: SwitchMLDataPlane, port: int) -> None:
        self._plane = plane
        self._port = port

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        self._plane.receive_at(self._port, datagrams, now_s)

    def transmit(self, now_s: float) -> Sequence[Datagram]:  # noqa: ARG002
        return self._plane.take_outgoing(self._port)

    def deadline_s(self) -> float | None:
        return None

    def expire(self, now_s: float) -> None: ...


def _open(host: str) -> dict[int, socket.socket]:
    """By port, all of them or none."""
    with ExitStack() as stack:
        opened = {}
        for port in PORTS:
            try:
                opened[port] = stack.enter_context(open_socket((host, port)))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(port)) from error
        stack.pop_all()
        return opened
