"""Gives a protocol core a UDP socket and a clock. The only thing in this package that waits, with the C worker."""

import logging
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EBADF, ENOTSOCK
from sys import byteorder
from typing import Final

from switch_agg.clock import machine_s, now_s
from switch_agg.core import Address, Core, Datagram

MAX_MESSAGE_BYTES: Final = 1 << 16
MAX_BATCH: Final = 64
SOCKET_BUFFER_BYTES: Final = 8 * 2**20
"""A whole pool of jumbo chunks; the kernel grants root what net.core.rmem_max would cut."""
_SO_RCVBUFFORCE: Final = 33
_SO_SNDBUFFORCE: Final = 32
_CONGESTION_EXPERIENCED: Final = 3
_ECT_0: Final = 2
_UDP_GRO: Final = 104
_WAKE_S: Final = 0.1
_SOCKET_IS_GONE: Final = frozenset({EBADF, ENOTSOCK})
"""Errors of sendto(2) that are no destination's."""
_LOG: Final = logging.getLogger(__name__)


def open_socket(local: Address, *, remote: Address | None = None) -> socket.socket:
    """A UDP socket with large buffers that says it understands ECN and reports marks, and takes messages of several
    datagrams that nothing on the way has cut up as one (UDP_GRO). Raises OSError."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                opened.setsockopt(socket.SOL_SOCKET, force, SOCKET_BUFFER_BYTES)
            except PermissionError:
                opened.setsockopt(socket.SOL_SOCKET, plain, SOCKET_BUFFER_BYTES)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT_0)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        opened.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
        opened.setblocking(False)
        opened.bind(local)
        if remote is not None:
            opened.connect(remote)
    except OSError:
        opened.close()
        raise
    return opened


class Driver:
    """Runs one core over one socket, on the thread that calls it."""

    def __init__(
        self,
        core: Core,
        opened: socket.socket,
        *,
        clock: Callable[[], float] = now_s,
        on_unsent: Callable[[Address, OSError], None] | None = None,
    ) -> None:
        """The socket is not the driver's to close. `on_unsent` hears of a destination that nothing can be sent to (no
        route, an interface that is down, a firewall); None: that ends :meth:`run`."""
        self._core = core
        self._socket = opened
        self._clock = clock
        self._on_unsent = on_unsent

    def run(self, until: Callable[[], bool], *, deadline_s: float | None = None) -> bool:
        """Serve the core until the condition holds; False when the deadline (by the clock) passed first."""
        core, clock = self._core, self._clock
        while True:
            self.transmit()
            if until():
                return True
            at_s = clock()
            if deadline_s is not None and at_s >= deadline_s:
                return False
            due_s = core.deadline_s()
            wait_s = _WAKE_S if due_s is None else min(_WAKE_S, machine_s(max(0.0, due_s - at_s)))
            select.select([self._socket], [], [], wait_s)
            self.receive()
            due_s = core.deadline_s()
            if due_s is not None and due_s <= clock():
                core.expire(clock())

    def receive(self) -> None:
        """Hand the core what has come, about one batch."""
        batch: list[Datagram] = []
        # ECONNREFUSED says that nobody listened to an earlier datagram: the core's timers decide what that means.
        with suppress(BlockingIOError, ConnectionRefusedError):
            while len(batch) < MAX_BATCH:
                data, ancillary, _, peer = self._socket.recvmsg(MAX_MESSAGE_BYTES, 64)
                marked, each_bytes = False, max(1, len(data))
                for level, kind, value in ancillary:
                    if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
                        marked = value[0] & 3 == _CONGESTION_EXPERIENCED
                    elif (level, kind) == (socket.SOL_UDP, _UDP_GRO):
                        each_bytes = int.from_bytes(value, byteorder)
                starts = range(0, max(1, len(data)), each_bytes)
                batch.extend(Datagram(peer, data[at : at + each_bytes], marked) for at in starts)
        if batch:
            self._core.receive(batch, self._clock())

    def transmit(self) -> None:
        """Send what the core wants sent; what the machine cannot send now is lost, as on any network."""
        for datagram in self._core.transmit(self._clock()):
            try:
                with suppress(BlockingIOError, ConnectionRefusedError):
                    self._socket.sendto(datagram.data, datagram.peer)
            except OSError as error:
                if self._on_unsent is None or error.errno in _SOCKET_IS_GONE:
                    raise
                self._on_unsent(datagram.peer, error)


class Service:
    """A core served by a thread of its own; `lock` guards the core against its other callers.

    A destination that nothing can be sent to is counted and logged once for each reason; the others are served.
    """

    def __init__(self, core: Core, opened: socket.socket, *, name: str) -> None:
        """Starts at once. The socket is the service's to close."""
        self.lock = threading.Lock()
        self._socket = opened
        self._unsent: Counter[str] = Counter()
        self._logged: set[tuple[str, int | None]] = set()
        self._driver = Driver(_Locked(core, self.lock), opened, on_unsent=self._note_unsent)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def unsent(self) -> Counter[str]:
        """By destination's host: datagrams that the machine refused to send. The lock is held."""
        return self._unsent.copy()

    def close(self) -> None:
        """End it and close the socket."""
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._driver.run(self._stopping.is_set)
        except Exception as error:  # noqa: BLE001 - reported to whoever asks, and nothing is served any more
            self._failure = error

    def _note_unsent(self, peer: Address, error: OSError) -> None:
        with self.lock:
            self._unsent[peer[0]] += 1
        if (peer[0], error.errno) not in self._logged:
            self._logged.add((peer[0], error.errno))
            _LOG.warning("nothing can be sent to %s:%d: %s; others are served", *peer, error.strerror)


class _Locked:
    """A core whose calls take a lock."""

    def __init__(self, core: Core, lock: threading.Lock) -> None:
        self._core = core
        self._lock = lock

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        with self._lock:
            self._core.receive(datagrams, now_s)

    def transmit(self, now_s: float) -> list[Datagram]:
        with self._lock:
            return list(self._core.transmit(now_s))

    def deadline_s(self) -> float | None:
        with self._lock:
            return self._core.deadline_s()

    def expire(self, now_s: float) -> None:
        with self._lock:
            self._core.expire(now_s)
