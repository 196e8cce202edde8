"""Members that are threads of one process, over queues: the contract of a channel without a network.

For tests, and for trying a collective or a compressor on real tensors in one process. A message is copied when it is
posted, so sends never wait.
"""

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final
from weakref import WeakValueDictionary

from transports.channels.base import (
    CHANNELS,
    Channel,
    Completion,
    Departure,
    ForwardReverse,
    Header,
    PeerStatistics,
    Token,
)
from transports.channels.framing import (
    DTYPE_BYTES,
    POINT_TO_POINT,
    Farewell,
    describe,
    left,
    mismatch,
    require_finished,
)
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.errors import PeerTimeoutError, TransportError
from transports.group import Group, published


class MemoryStore:
    """A rendezvous for threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        """See :class:`transports.group.Store`."""
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """See :class:`transports.group.Store`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= set(keys), timeout.total_seconds()):
                raise TimeoutError(f"nobody has set {', '.join(keys)} within {timeout}")

    def check(self, keys: list[str], /) -> bool:
        """See :class:`transports.group.Store`."""
        with self._changed:
            return self._values.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        """See :class:`transports.group.Store`."""
        with self._changed:
            return self._values[key]


class _Hub:
    """What the members of one group share; `changed` guards all of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.joined: set[int] = set()
        self.messages: dict[tuple[int, int], deque[tuple[Header, bytes]]] = {}
        self.farewells: dict[int, Farewell] = {}
        """Of members that closed."""


_HUBS: Final[WeakValueDictionary[str, _Hub]] = WeakValueDictionary()


class MemoryEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(self, group: Group, hub: _Hub) -> None:
        self._group = group
        self._hub = hub
        peers = [rank for rank in range(group.size) if rank != group.rank]
        self._receives: dict[int, deque[tuple[Token, Header, memoryview]]] = {peer: deque() for peer in peers}
        self._moved_s = dict.fromkeys(peers, 0.0)
        self._statistics = {peer: PeerStatistics() for peer in peers}
        self._completions: list[Completion] = []
        self._num_tokens = 0
        self._sequence = 0
        self._error: TransportError | None = None
        self._woken = False
        self._closed = False

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(header, view)
        with self._hub.changed:
            self._hub.messages.setdefault((self._group.rank, peer), deque()).append((header, bytes(view)))
            self._hub.changed.notify_all()
        self._statistics[peer].payload_bytes_sent += len(view)
        self._completions.append(Completion(token))
        return token

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(header, view)
        if not self._receives[peer]:
            self._moved_s[peer] = time.monotonic()
        self._receives[peer].append((token, header, view))
        return token

    def _token(self, header: Header, view: memoryview) -> Token:
        assert len(view) == header.count * DTYPE_BYTES[header.dtype], f"{len(view)} bytes for {describe(header)}"
        if header.operation != POINT_TO_POINT:
            self._sequence = header.sequence
        self._num_tokens += 1
        return self._num_tokens

    def skip(self, sequence: int) -> None:
        """See :class:`Endpoint`."""
        self._sequence = sequence

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        with self._hub.changed:
            try:
                return self._progress(deadline_s, until_s)
            except TransportError as error:
                self._error = error
                raise

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        while True:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise TransportError(f"rank {self._group.rank} closed the group itself")
            for peer in self._receives:
                self._take(peer)
                if peer in self._hub.farewells:
                    self._check_departure(peer, self._hub.farewells[peer])
            if self._completions or self._woken:
                completions, self._completions = self._completions, []
                self._woken = False
                return completions
            wait_s = min(deadline_s, until_s) - time.monotonic()
            if not self._hub.changed.wait(max(wait_s, 0.0) if math.isfinite(wait_s) else None):
                if until_s < deadline_s:
                    return []
                raise self._timeout()

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        with self._hub.changed:
            try:
                return self._peek(peer, deadline_s)
            except TransportError as error:
                self._error = error
                raise

    def _peek(self, peer: int, deadline_s: float) -> Header | None:
        while True:
            if self._closed:
                raise TransportError(f"rank {self._group.rank} closed the group itself")
            if messages := self._hub.messages.get((peer, self._group.rank)):
                return messages[0][0]
            if peer in self._hub.farewells:
                require_finished(peer, self._hub.farewells[peer], self._group.rank)
                return None
            wait_s = deadline_s - time.monotonic()
            if not self._hub.changed.wait(max(wait_s, 0.0) if math.isfinite(wait_s) else None):
                raise PeerTimeoutError(peer, 0.0, "its next message")

    def _take(self, peer: int) -> None:
        messages = self._hub.messages.get((peer, self._group.rank))
        receives = self._receives[peer]
        while messages and receives:
            sent, data = messages.popleft()
            token, expected, view = receives.popleft()
            if sent != expected:
                raise mismatch(sender=peer, sent=sent, receiver=self._group.rank, expected=expected)
            view[:] = data
            self._moved_s[peer] = time.monotonic()
            self._statistics[peer].payload_bytes_received += len(data)
            self._completions.append(Completion(token))

    def _check_departure(self, peer: int, farewell: Farewell) -> None:
        if self._sequence > farewell.after or self._receives[peer]:
            raise left(peer, farewell, self._group.rank)

    def _timeout(self) -> TransportError:
        busy = [peer for peer, receives in self._receives.items() if receives]
        if not busy:
            return TransportError("timed out with nothing under way")
        peer = min(busy, key=self._moved_s.__getitem__)
        waited_s = time.monotonic() - self._moved_s[peer]
        return PeerTimeoutError(peer, waited_s, describe(self._receives[peer][0][1]))

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        """See :class:`Endpoint`."""

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`."""
        with self._hub.changed:
            return Departure(True, "it closed the group") if peer in self._hub.farewells else None

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        with self._hub.changed:
            self._woken = True
            self._hub.changed.notify_all()

    def let_go(self) -> None:
        """See :class:`Endpoint`. Nobody but :meth:`progress` touches posted views."""

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`."""
        return self._statistics

    def congestion(self) -> dict[int, str]:
        """See :class:`Endpoint`."""
        return {}

    def close(self) -> None:
        """See :class:`Endpoint`."""
        with self._hub.changed:
            if self._closed:
                return
            self._closed = True
            in_order = self._error is None and not any(self._receives.values())
            finished = self._sequence if in_order else self._sequence - 1
            self._hub.farewells[self._group.rank] = Farewell.because(finished, self._error)
            self._hub.changed.notify_all()


@CHANNELS.register
class Memory(Channel):
    """Queues between threads of one process; nothing touches a network."""

    crosses_links: ClassVar[bool] = False
    header_bytes: ClassVar[int] = 0

    def open(self, group: Group) -> MemoryEndpoint:
        """See :class:`Channel`."""
        deadline_s = time.monotonic() + group.timeout_s
        key = f"{group.name}/hub"
        if group.rank == 0:
            name = uuid.uuid4().hex
            hub = _HUBS[name] = _Hub()
            group.store.set(key, name)
        else:
            name = published(group, key, 0, "its hub in the store", deadline_s)
            found = _HUBS.get(name)
            if found is None:
                raise TransportError("the memory channel joins threads of one process; rank 0 lives in another")
            hub = found
        with hub.changed:
            hub.joined.add(group.rank)
            hub.changed.notify_all()
            while len(hub.joined) < group.size:
                if not hub.changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    missing = min(set(range(group.size)) - hub.joined)
                    raise PeerTimeoutError(missing, group.timeout_s, "it to join")
        return MemoryEndpoint(group, hub)

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:  # noqa: ARG002 (the interface's)
        """Nothing but the payload."""
        return ForwardReverse(payload_bytes, 0)

    def goodput_fraction(self, mtu: int) -> float:  # noqa: ARG002 (the interface's)
        """All of it."""
        return 1.0
