"""One end of a reliable UDP connection: connection.h, which has neither sockets nor a clock, as Python opens it.

What drives it is either native as well (udp.c, which `endpoint.py` starts) or whoever makes the five calls of
switch_agg.core.Core, as the simulator does.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from switch_agg.core import Address, Datagram
from switch_agg.round_trip import INITIAL_TIMEOUT_S, MAX_TIMEOUT_S, MIN_TIMEOUT_S
from switch_agg.window import FixedWindow, Window
from transports.channels._udp import native
from transports.channels._udp.wire import HEADER_BYTES as DATAGRAM_HEADER_BYTES
from transports.channels.framing import HEADER_BYTES, Farewell

_MAX_RUN_PACKETS: Final = 176


class PaceKind(IntEnum):
    """`enum pace_kind`."""

    WINDOW = 0
    """No rate but the window's: a window per smoothed round trip is what self-clocking makes of it."""
    FIXED = 1
    PROBED = 2


class Pace(NamedTuple):
    """How fast a connection may send (pacing.h)."""

    kind: PaceKind
    rate_bps: float = 0.0
    """Of a fixed one, of whole packets on the wire."""

    @classmethod
    def fixed(cls, rate_bps: float) -> "Pace":
        """Always that rate."""
        return cls(PaceKind.FIXED, rate_bps)


WINDOW_PACE: Final = Pace(PaceKind.WINDOW)
PROBED_PACE: Final = Pace(PaceKind.PROBED)


class Connection:
    """One end. `local` and `remote` are the numbers that the ends chose for the connection."""

    def __init__(
        self,
        *,
        peer: Address,
        local: int,
        remote: int,
        packet_bytes: int,
        window: Window,
        pace: Pace,
        pacer: native.Pacer,
        completions: native.Completions,
        now_s: float,
    ) -> None:
        """`packet_bytes` is what a full packet carries. Connections that share a link share a pacer; what is complete
        `completions` says, of all that have it."""
        self.peer = peer
        self.completions: Final = completions
        self._packet_bytes = packet_bytes
        self._library = native.library()
        self._pacer = pacer  # alive as long as the engine's connection
        self._policy = None if isinstance(window, FixedWindow) else native.WindowPolicy(_policy(window))
        settings = native.Settings(
            local=local,
            remote=remote,
            packet_bytes=packet_bytes,
            window=window.size,
            policy=ctypes.cast(self._policy, ctypes.c_void_p) if self._policy else None,
            pacer=ctypes.addressof(pacer),
            completions=completions.address,
            pace_kind=pace.kind,
            rate_bps=pace.rate_bps,
            initial_timeout_s=INITIAL_TIMEOUT_S,
            min_timeout_s=MIN_TIMEOUT_S,
            max_timeout_s=MAX_TIMEOUT_S,
            now_s=now_s,
        )
        self.address: Final[int] = self._library.connection_open(ctypes.byref(settings))
        weakref.finalize(self, self._library.connection_close, self.address).atexit = False
        self.state: Final = native.ConnectionState.from_address(self.address)
        """The engine's own memory: to look at."""

    # --- requests to it -----------------------------------------------------------------------------------------

    def post(self, frame: bytes, view: memoryview, token: int | None) -> None:
        """Queue a message behind its frame header. `view` may change once the token completes; without one, at once."""
        if token is not None:
            self.completions.hold(token, view)
        number = native.NO_TOKEN if token is None else token
        self._library.outgoing_post(self._outgoing, frame, native.address_of(view), len(view), number)

    def expect(self, frame: bytes, view: memoryview, token: int) -> None:
        """The next message goes to `view`, which is its owner's again once the token completes."""
        self.completions.hold(token, view)
        self._library.incoming_expect(self._incoming, frame, native.address_of(view), len(view), token)

    def let_go(self) -> None:
        """Use no memory any more of messages whose token is still out: those to send are given up, those before them
        are delivered, and what comes of expected ones is acknowledged and goes nowhere."""
        self._library.connection_let_go(self.address)

    def leave(self, farewell: Farewell, now_s: float) -> None:
        """Begin a graceful close: messages whose token is still out are let go of."""
        lost = 0 if farewell.lost is None else farewell.lost + 1
        self._library.connection_leave(self.address, farewell.after & 0xFFFF_FFFF, lost, now_s)

    # --- what it knows ------------------------------------------------------------------------------------------

    @property
    def _outgoing(self) -> int:
        return self.address + native.ConnectionState.outgoing.offset

    @property
    def _incoming(self) -> int:
        return self.address + native.ConnectionState.incoming.offset

    @property
    def expecting(self) -> bool:
        """Whether a message is expected that has not come."""
        return bool(self.state.incoming.messages.num)

    @property
    def delivered(self) -> bool:
        """Whether the peer has acknowledged everything."""
        return bool(self._library.outgoing_delivered(self._outgoing))

    @property
    def first_pending(self) -> bytes | None:
        """The frame header of the message that is waited for, an expected one before one to send."""
        found = self._library.connection_first_pending(self.address)
        return ctypes.string_at(found, HEADER_BYTES) if found else None

    @property
    def disagreement(self) -> tuple[bytes, bytes] | None:
        """The frame header that came and the one that was expected."""
        if not self.state.incoming.disagreement:
            return None
        messages = self.state.incoming.messages
        first = native.Arriving.from_address(messages.items + messages.head * ctypes.sizeof(native.Arriving))
        return bytes(first.frame), bytes(first.expected)

    @property
    def restarted(self) -> bool:
        """Whether the other end says that it knows nothing of this connection."""
        return bool(self.state.restarted)

    @property
    def farewell(self) -> Farewell | None:
        """What the peer said when it left, once all that it sent has come."""
        received = self._library.ranges_prefix(self._incoming + native.Incoming.received.offset)
        if not self.state.peer_leaves or received < self.state.peer_end:
            return None
        lost = self.state.farewell_lost
        return Farewell(self.state.farewell_after, lost - 1 if lost else None)

    @property
    def peer_leaves(self) -> bool:
        """Whether the peer has said that it leaves."""
        return bool(self.state.peer_leaves)

    @property
    def leave_answered(self) -> bool:
        """Whether the peer has heard that this end leaves."""
        return bool(self.state.leave_answered)

    @property
    def num_rejected(self) -> int:
        """Datagrams that were cut short, corrupted or not of this connection."""
        return int(self.state.num_rejected)

    @property
    def bottleneck_bps(self) -> float:
        """The rate that a probed pace believes in; 0: none yet."""
        return float(self._library.pace_bottleneck_bps(self.address + native.ConnectionState.pace.offset))

    # --- without sockets ----------------------------------------------------------------------------------------

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """See switch_agg.core.Core."""
        for datagram in datagrams:
            self._library.connection_receive(
                self.address, datagram.data, len(datagram.data), datagram.marked, 0, now_s - datagram.age_s, now_s
            )
        self._library.connection_settle(self.address, now_s)

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """See switch_agg.core.Core."""
        room = (ctypes.c_uint8 * (_MAX_RUN_PACKETS * (self._packet_bytes + DATAGRAM_HEADER_BYTES + 2)))()
        found: list[Datagram] = []
        while num_bytes := self._library.connection_transmit(self.address, now_s, room):
            data, at = bytes(memoryview(room)[:num_bytes]), 0
            while at < num_bytes:
                end = at + 2 + int.from_bytes(data[at : at + 2], "little")
                found.append(Datagram(self.peer, data[at + 2 : end]))
                at = end
        return found

    def deadline_s(self) -> float:
        """See switch_agg.core.Core."""
        return float(self._library.connection_deadline_s(self.address))

    def expire(self, now_s: float) -> None:
        """See switch_agg.core.Core."""
        self._library.connection_expire(self.address, now_s)


def _policy(window: Window) -> Callable[[float, int, int, float], int]:
    """What the engine calls for a window that adapts."""

    def policy(round_trip_s: float, num_packets: int, marked: int, now_s: float) -> int:
        known_s = None if round_trip_s < 0 else round_trip_s
        if num_packets == 0:
            window.on_loss(now_s)
        else:
            window.on_result(known_s, marked=bool(marked), now_s=now_s)
            for _ in range(num_packets - 1):
                window.on_result(known_s, marked=False, now_s=now_s)
        return window.size

    return policy
