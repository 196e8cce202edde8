"""The channel's native engine (udp.c and what it includes) as Python sees it: structures, functions, waiting.

Every structure is laid out here as there, which the compiler checks; fields with a leading `zero` only fill them up.
"""

import ctypes
import errno
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from switch_agg import clock
from switch_agg.errors import UnsupportedError as CannotBuildError
from switch_agg.native.build import build
from switch_agg.native.layout import layout_of
from transports.channels.framing import HEADER_BYTES
from transports.errors import TransportError, UnsupportedError

SOURCE: Final = Path(__file__).with_name("udp.c")
NO_TOKEN: Final = -1
ONGOING, MOVED, LATE, ENDED, FAILED, TOO_LONG, GONE = range(7)
"""Of `enum outcome`."""
BUFFERS_BYTES: Final = 32 * 65536
"""What one batch of arrivals passes through."""

_u8, _u32, _i32, _u64, _i64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
_double, _pointer = ctypes.c_double, ctypes.c_void_p

WindowPolicy: Final = ctypes.CFUNCTYPE(_u32, _double, _u32, _u32, _double)
"""`window_policy`: round trip, packets that came back, marked, now; returns the window."""


class Queue(ctypes.Structure):
    """Of any of connection.h's kinds; `items` is their address."""

    _fields_ = (("items", _pointer), ("head", _u32), ("num", _u32), ("capacity", _u32))


class Range(ctypes.Structure):
    """struct range."""

    _fields_ = (("start", _u64), ("end", _u64))


class Ranges(ctypes.Structure):
    """struct ranges."""

    _fields_ = (("items", ctypes.POINTER(Range)), ("num", _u32), ("capacity", _u32))


class Shortest(ctypes.Structure):
    """struct shortest."""

    _fields_ = (("value_s", _double), ("until_s", _double), ("known", _i32), ("zero", _i32))


class Meter(ctypes.Structure):
    """struct meter."""

    _fields_ = (("points", Queue), ("ticks", _i64), ("shortest", Shortest))


class Delivery(ctypes.Structure):
    """struct delivery."""

    _fields_ = (("rate_bps", _double), ("busy_s", _double), ("queue_s", _double))


class Pace(ctypes.Structure):
    """struct pace."""

    _fields_ = (
        ("kind", _u32), ("state", _u32), ("fixed_bps", _double), ("base", Shortest), ("best", Queue),
        ("age_s", _double), ("faded_s", _double), ("full_bps", _double), ("round_ends_s", _double),
        ("phase_ends_s", _double), ("probed_bps", _double), ("latest_bps", _double),
        ("rounds_without_growth", _u32), ("phase", _u32), ("num_drains", _u32), ("zero", _u32),
    )  # fmt: skip


class Pacer(ctypes.Structure):
    """struct pacer: spaces packets out; several connections may share one, and with it a link."""

    _fields_ = (("next_s", _double), ("burst_ends_s", _double))


class RoundTrip(ctypes.Structure):
    """struct round_trip."""

    _fields_ = (
        ("min_timeout_s", _double), ("max_timeout_s", _double), ("timeout_s", _double), ("smoothed_s", _double),
        ("variation_s", _double), ("least_s", _double), ("measured", _u32), ("zero", _u32),
    )  # fmt: skip


class Run(ctypes.Structure):
    """struct run."""

    _fields_ = (
        ("first", _u64), ("offset", _u64), ("num_packets", _u32), ("num_bytes", _u32), ("sent_s", _double),
        ("after_rest", _u32), ("saturated", _u32),
    )  # fmt: skip


class Piece(ctypes.Structure):
    """struct piece."""

    _fields_ = (("offset", _u64), ("end", _u64))


class Named(ctypes.Structure):
    """struct named."""

    _fields_ = (("first", _i64), ("last", _i64))


class Taken(ctypes.Structure):
    """struct taken."""

    _fields_ = (
        ("sent_s", _double), ("saturated", _u32), ("num_packets", _u32), ("holds_largest", _u32), ("app_limited", _u32),
    )  # fmt: skip


class Outgoing(ctypes.Structure):
    """struct outgoing."""

    _fields_ = (
        ("next_number", _u64), ("limit", _u64), ("loss_s", _double), ("payload_bytes", _u64),
        ("retransmitted_bytes", _i64), ("delivered_bytes", _u64), ("packet_bytes", _u32), ("num_under_way", _u32),
        ("completions", _pointer), ("end", _u64), ("busy_from", _u64), ("next_offset", _u64),
        ("largest_acknowledged", _i64), ("num_sent_whole", _u32), ("num_pending", _u32), ("messages", Queue),
        ("sent", Queue), ("kept", Queue), ("lost", Queue), ("acknowledged", Ranges),
    )  # fmt: skip


class Arrival(ctypes.Structure):
    """struct arrival."""

    _fields_ = (
        ("number", _u32), ("num_packets", _u32), ("offset", _u64), ("num_bytes", _u32), ("train_bytes", _u32),
        ("marked", _u32), ("zero", _u32), ("arrived_s", _double),
    )  # fmt: skip


class Incoming(ctypes.Structure):
    """struct incoming."""

    _fields_ = (
        ("acknowledge_s", _double), ("payload_bytes", _u64), ("disagreement", _u32), ("num_unacknowledged", _u32),
        ("completions", _pointer), ("posted_end", _u64), ("arrived_end", _u64), ("allowed", _u64),
        ("arrived_s", _double), ("train_bytes", _u32), ("marks", _u32), ("aside", _pointer), ("messages", Queue),
        ("received", Ranges), ("numbers", Ranges),
    )  # fmt: skip


class Acknowledged(ctypes.Structure):
    """struct acknowledged."""

    _pack_ = 1
    _fields_ = (
        ("delay_us", _u32),
        ("arrived_us", _u32),
        ("train_bytes", _u32),
        ("marks", _u32),
        ("num_ranges", ctypes.c_uint16),
    )


class Arriving(ctypes.Structure):
    """struct arriving."""

    _fields_ = (
        ("start", _u64), ("end", _u64), ("payload", _pointer), ("token", _i64), ("expected", _u8 * HEADER_BYTES),
        ("frame", _u8 * HEADER_BYTES),
    )  # fmt: skip


class ConnectionState(ctypes.Structure):
    """struct connection."""

    _fields_ = (
        ("local", _u32), ("remote", _u32), ("policy", _pointer), ("pacer", _pointer), ("window", _u32),
        ("wire_bytes", _u32), ("restarted", _u32), ("leaves", _u32), ("leave_answered", _u32), ("peer_leaves", _u32),
        ("farewell_after", _u32), ("farewell_lost", _u32), ("our_after", _u32), ("our_lost", _u32),
        ("peer_end", _u64), ("our_end", _u64), ("acknowledgement_bytes", _u64), ("num_rejected", _u64),
        ("heard_s", _double), ("pinged_s", _double), ("armed_s", _double), ("leave_s", _double),
        ("latest_s", _double), ("marks_seen", _u32), ("probes_unanswered", _u32), ("num_probes", _u32),
        ("num_waiting_bytes", _u32), ("waiting", _pointer), ("waiting_capacity", _u64), ("arrival", Arrival),
        ("round_trip", RoundTrip), ("pace", Pace), ("meter", Meter), ("outgoing", Outgoing), ("incoming", Incoming),
    )  # fmt: skip


class Settings(ctypes.Structure):
    """struct settings."""

    _fields_ = (
        ("local", _u32), ("remote", _u32), ("packet_bytes", _u32), ("window", _u32), ("policy", _pointer),
        ("pacer", _pointer), ("completions", _pointer), ("pace_kind", _u32), ("zero", _u32), ("rate_bps", _double),
        ("initial_timeout_s", _double), ("min_timeout_s", _double), ("max_timeout_s", _double), ("now_s", _double),
    )  # fmt: skip


class PeerState(ctypes.Structure):
    """struct peer."""

    _fields_ = (
        ("connection", _pointer), ("socket", _i32), ("refused", _u32), ("due_s", _double), ("moved_s", _double),
        ("moved_bytes", _u64), ("arrived_bytes", _u64), ("arrived_s", _double), ("arrival_rate", _double),
    )  # fmt: skip


class EndpointState(ctypes.Structure):
    """struct endpoint."""

    _fields_ = (
        ("peers", _pointer), ("buffers", _pointer), ("completions", _pointer), ("dilation", _double),
        ("sequence", _u64), ("num_peers", _u32), ("wake", _i32), ("alarm", _i32), ("away", _u32), ("woken", _u32),
        ("failed_peer", _u32), ("error", _i32),
    )  # fmt: skip


_LAYOUTS: Final[dict[str, Any]] = {
    "tokens": Queue, "range": Range, "ranges": Ranges, "shortest": Shortest, "meter": Meter, "delivery": Delivery,
    "pace": Pace, "pacer": Pacer, "round_trip": RoundTrip, "run": Run, "piece": Piece, "named": Named, "taken": Taken,
    "outgoing": Outgoing, "arrival": Arrival, "acknowledged": Acknowledged, "arriving": Arriving, "incoming": Incoming,
    "connection": ConnectionState,
    "settings": Settings, "peer": PeerState, "endpoint": EndpointState,
}  # fmt: skip

_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "read_header": (_i32, (_pointer, ctypes.c_size_t, _pointer)),
    "write_datagram": (ctypes.c_size_t, (_pointer, _u32, _u64, _i32, _u64, _pointer, ctypes.c_uint16)),
    "whole_number": (_u64, (_u32, _u64)),
    "read_ranges": (_i32, (_pointer, ctypes.c_uint16, _u64, _pointer, _pointer, _i32)),
    "write_ranges": (ctypes.c_uint16, (_pointer, _pointer)),
    "ranges_add": (_u64, (_pointer, _u64, _u64)),
    "ranges_cover": (_i32, (_pointer, _u64, _u64)),
    "ranges_prefix": (_u64, (_pointer,)),
    "ranges_keep_last": (None, (_pointer, _u32)),
    "meter_on_acknowledged": (Delivery, (_pointer, _u32, _double, _u64, _u32, _i32, _double)),
    "pace_bottleneck_bps": (_double, (_pointer,)),
    "pace_rate_bps": (_double, (_pointer,)),
    "pace_flight_bytes": (_double, (_pointer,)),
    "pace_on_acknowledged": (None, (_pointer, _pointer, _double, _double, _double)),
    "pacer_opens": (_i32, (_pointer, _double)),
    "pacer_pause": (None, (_pointer, _double)),
    "pacer_spend": (None, (_pointer, _u64, _double, _double)),
    "round_trip_sample": (None, (_pointer, _double)),
    "round_trip_after_attempts_s": (_double, (_pointer, _u32)),
    "outgoing_begin": (None, (_pointer, _u32, _pointer)),
    "outgoing_free": (None, (_pointer,)),
    "outgoing_delivered": (_i32, (_pointer,)),
    "outgoing_unfinished": (_i32, (_pointer,)),
    "outgoing_post": (None, (_pointer, _pointer, _pointer, _u64, _i64)),
    "outgoing_give_up": (_u64, (_pointer,)),
    "outgoing_on_acknowledged": (Taken, (_pointer, _pointer, _u32, _i64)),
    "outgoing_on_received": (None, (_pointer, _u64)),
    "outgoing_detect_loss": (_i32, (_pointer, _double, _double)),
    "outgoing_wanted": (_i32, (_pointer, _pointer)),
    "outgoing_take": (Run, (_pointer, Piece, _u32, _double, _i64, _i32)),
    "outgoing_repeat_oldest": (_i32, (_pointer, _u32)),
    "incoming_begin": (None, (_pointer, _pointer, _double)),
    "incoming_free": (None, (_pointer,)),
    "incoming_expect": (None, (_pointer, _pointer, _pointer, _u64, _i64)),
    "incoming_let_go": (None, (_pointer,)),
    "incoming_peek": (_i32, (_pointer, _pointer)),
    "incoming_place": (_i32, (_pointer, _u64, _pointer, _u32)),
    "incoming_on_packets": (None, (_pointer, _pointer, _double)),
    "incoming_acknowledge": (ctypes.c_size_t, (_pointer, _u32, _double, _pointer)),
    "completions_free": (None, (_pointer,)),
    "connection_open": (_pointer, (_pointer,)),
    "connection_close": (None, (_pointer,)),
    "connection_let_go": (_u64, (_pointer,)),
    "connection_leave": (None, (_pointer, _u32, _u32, _double)),
    "connection_first_pending": (_pointer, (_pointer,)),
    "connection_spare_s": (_double, (_pointer,)),
    "connection_settle": (None, (_pointer, _double)),
    "connection_receive": (None, (_pointer, _pointer, _u32, _i32, _i32, _double, _double)),
    "connection_next_run": (_i32, (_pointer, _double, _pointer)),
    "connection_take_back": (None, (_pointer, _pointer, _u32, _double)),
    "connection_transmit": (_u64, (_pointer, _double, _pointer)),
    "connection_deadline_s": (_double, (_pointer,)),
    "connection_expire": (None, (_pointer, _double)),
    "endpoint_drive": (_i32, (_pointer, _double, _double)),
    "endpoint_peek": (_i32, (_pointer, _u32, _double, _pointer)),
    "endpoint_rest_s": (_double, (_pointer, _double)),
    "endpoint_look": (_i32, (_pointer, _pointer)),
    "endpoint_linger": (_i32, (_pointer, _double)),
    "endpoint_send": (None, (_pointer, _u32, _pointer, _pointer, _u64, _i64)),
    "endpoint_expect": (None, (_pointer, _u32, _pointer, _pointer, _u64, _i64)),
    "wait_readable": (_i32, (_pointer, _u32, _double, _pointer)),
    "open_alarm": (_i32, ()),
    "set_alarm": (None, (_i32, _double)),
}
"""What comes back, and what goes in. Those of the parts are for their tests, which know no connection."""


def build_library() -> Path:
    """Where it is, built if need be. Raises UnsupportedError of switch_agg where it cannot be."""
    return build(SOURCE, "library", layouts=[layout_of(name, kind) for name, kind in _LAYOUTS.items()])


@cache
def library() -> ctypes.CDLL:
    """The functions, built if need be. Raises UnsupportedError without a C compiler."""
    try:
        found = ctypes.CDLL(str(build_library()))
    except CannotBuildError as error:
        raise UnsupportedError(str(error)) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def address_of(view: memoryview | bytes | bytearray) -> int:
    """Of its first byte; 0: it has none."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if len(view) else 0
    return address


class Completions:
    """The tokens of messages that are complete, of any number of connections, and the memory of those that are not:
    the engine reads and writes it, so that it must not go away."""

    def __init__(self) -> None:
        self._tokens = Queue()
        self._views: dict[int, memoryview] = {}
        self.address: Final = ctypes.addressof(self._tokens)
        weakref.finalize(self, library().completions_free, ctypes.pointer(self._tokens)).atexit = False

    def hold(self, token: int, view: memoryview) -> None:
        """That is the token's memory."""
        self._views[token] = view

    def take(self) -> list[int]:
        """Those that have come since the last time; their memory is their owners' again."""
        tokens = self._tokens
        if not tokens.num:
            return []
        first = tokens.items + tokens.head * ctypes.sizeof(_i64)
        found = list((_i64 * tokens.num).from_address(first))
        tokens.head = tokens.num = 0
        for token in found:
            self._views.pop(token, None)
        return found


class Waiter:
    """Waits for descriptors, to the microsecond; select.epoll waits in whole milliseconds."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._library = library()
        self._descriptors = (_i32 * max(1, len(descriptors)))(*descriptors)
        self._ready = (_u8 * max(1, len(descriptors)))()
        self._num_descriptors = len(descriptors)

    def wait(self, timeout_s: float) -> list[int]:
        """The indices of those that can be read, when there are any or the time is over."""
        found: int = self._library.wait_readable(
            self._descriptors, self._num_descriptors, clock.machine_s(timeout_s), self._ready
        )
        if found < 0:
            raise TransportError(f"cannot wait for {self._num_descriptors} sockets: {errno.errorcode.get(-found)}")
        if not found:
            return []
        return [index for index, ready in enumerate(bytes(self._ready)[: self._num_descriptors]) if ready]


class Alarm:
    """A descriptor that can be read once a time is over (timerfd_create(2)): setting it, which the engine does, too,
    wakes nobody, as an event would whom it is meant for."""

    def __init__(self) -> None:
        """Raises TransportError where there are no more descriptors."""
        self._library = library()
        self.descriptor: int = self._library.open_alarm()
        if self.descriptor < 0:
            raise TransportError(f"cannot set an alarm: {errno.errorcode.get(-self.descriptor)}")

    def set(self, after_s: float) -> None:
        """Once, in so long; 0: not at all, and what has gone off is forgotten."""
        self._library.set_alarm(self.descriptor, clock.machine_s(after_s))
