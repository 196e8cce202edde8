"""The native mover of packets (udp.c) as Python sees it: structures, functions, and who owns which memory."""

import ctypes
import errno
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from switch_agg import clock
from switch_agg.errors import UnsupportedError as CannotBuildError
from switch_agg.native.build import build
from switch_agg.native.layout import layout_of
from transports.channels._udp.connection import Connection
from transports.channels._udp.incoming import Arrival
from transports.channels._udp.outgoing import Run
from transports.channels._udp.wire import Packet, unpack
from transports.channels.framing import HEADER_BYTES
from transports.errors import FrameMismatchError, TransportError, UnsupportedError

SOURCE: Final = Path(__file__).with_name("udp.c")
_BATCH: Final = 32
_BUFFER_BYTES: Final = 65536
_MAX_RUNS: Final = 256
_CONTROLS_BYTES: Final = 65536
_RUN: Final = struct.Struct("<QQIIIIq")
"""struct run of udp.c: read as one, since fields of ctypes cost a look-up each."""


class _Target(ctypes.Structure):
    """struct target of udp.c."""

    _fields_ = (("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("to", ctypes.c_void_p))


class _Run(ctypes.Structure):
    """struct run of udp.c, whose fields `_RUN` reads in this order; here for the layout to be checked against."""

    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("number", ctypes.c_uint32),
        ("num_packets", ctypes.c_uint32),
        ("marked", ctypes.c_uint32),
        ("train_bytes", ctypes.c_uint32),
        ("arrived_ns", ctypes.c_int64),
    )


assert _RUN.size == ctypes.sizeof(_Run)


class _Reception(ctypes.Structure):
    """struct reception of udp.c."""

    _fields_ = (
        ("targets", ctypes.c_void_p),
        ("runs", ctypes.c_void_p),
        ("controls", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("prefix", ctypes.c_uint64),
        ("num_targets", ctypes.c_uint32),
        ("max_runs", ctypes.c_uint32),
        ("controls_bytes", ctypes.c_uint32),
        ("connection", ctypes.c_uint32),
        ("socket", ctypes.c_int32),
        ("num_runs", ctypes.c_uint32),
        ("num_controls_bytes", ctypes.c_uint32),
        ("num_rejected", ctypes.c_uint32),
        ("more", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("now_ns", ctypes.c_int64),
    )


def build_library() -> Path:
    """Where it is, built if need be. Raises UnsupportedError of switch_agg where it cannot be."""
    layouts = (layout_of("target", _Target), layout_of("run", _Run), layout_of("reception", _Reception))
    return build(SOURCE, "library", layouts=layouts)


@cache
def library() -> ctypes.CDLL:
    """The functions, built if need be. Raises UnsupportedError without a C compiler."""
    try:
        found = ctypes.CDLL(str(build_library()))
    except CannotBuildError as error:
        raise UnsupportedError(str(error)) from error
    pointer, u32, u64, i32 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
    found.send_run.argtypes = (i32, u32, u32, pointer, u32, pointer, u64, u64, u32, u32)
    found.receive_runs.argtypes = (pointer,)
    found.receive_runs.restype = None
    found.wait_readable.argtypes = (pointer, u32, ctypes.c_int64, ctypes.c_int64, pointer)
    found.set_alarm.argtypes = (i32, ctypes.c_int64)
    found.set_alarm.restype = None
    return found


def _address(view: memoryview | bytes | bytearray) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if len(view) else 0
    return address


def send_run(descriptor: int, connection: Connection, run: Run) -> int:
    """Hand the run to the kernel. Returns how many of its packets it took; if none, a negative errno."""
    message = run.message
    if message.pointers is None:
        message.pointers = (_address(message.header), _address(message.view))
    result: int = library().send_run(
        descriptor, connection.remote, run.first & 0xFFFF_FFFF, message.pointers[0], HEADER_BYTES, message.pointers[1],
        message.start, run.offset, run.num_bytes, connection.outgoing.packet_bytes,
    )  # fmt: skip
    return result


class Received(NamedTuple):
    """What one call found."""

    more: bool
    """Whether the socket may hold more."""
    error: int
    """An errno, or 0."""


class Receiver:
    """Reads one connection's socket into the connection. Several may share the `scratch` memory, one after another."""

    def __init__(self, connection: Connection, descriptor: int, scratch: "Scratch") -> None:
        self._connection, self._scratch = connection, scratch
        self._library = library()
        self._version = -1
        self._targets: ctypes.Array[_Target]
        self._views: Sequence[memoryview] = ()  # alive as long as the native code may write to them
        self._reception = _Reception(
            runs=ctypes.addressof(scratch.runs),
            controls=ctypes.addressof(scratch.controls),
            buffers=ctypes.addressof(scratch.buffers),
            max_runs=_MAX_RUNS,
            controls_bytes=_CONTROLS_BYTES,
            connection=connection.local,
            socket=descriptor,
        )
        self._pointer = ctypes.addressof(self._reception)

    def receive(self) -> Received:
        """At most one batch."""
        connection, reception = self._connection, self._reception
        if self._version != connection.incoming.version:
            self._aim()
        reception.prefix = connection.incoming.received.prefix
        self._library.receive_runs(self._pointer)
        now_s = clock.protocol_s(reception.now_ns * 1e-9)
        if reception.num_runs:
            runs = _RUN.iter_unpack(self._scratch.run_bytes[: reception.num_runs * _RUN.size])
            for offset, num_bytes, number, num_packets, marked, train_bytes, arrived_ns in runs:
                arrived_s = clock.protocol_s(arrived_ns * 1e-9)
                connection.on_packets(
                    Arrival(number, num_packets, offset, num_bytes, bool(marked), arrived_s, train_bytes), now_s
                )
        connection.num_rejected += reception.num_rejected
        if reception.num_controls_bytes:
            for packet in self._controls(reception.num_controls_bytes):
                connection.on_control(packet, now_s)
        return Received(bool(reception.more), reception.error)

    def _controls(self, num_bytes: int) -> Iterator[Packet]:
        data = ctypes.string_at(ctypes.addressof(self._scratch.controls), num_bytes)
        at = 0
        while at < num_bytes:
            length = int.from_bytes(data[at : at + 2], "little")
            try:
                yield unpack(data[at + 2 : at + 2 + length])
            except FrameMismatchError:
                self._connection.num_rejected += 1
            at += 2 + length

    def _aim(self) -> None:
        targets = self._connection.incoming.targets()
        self._targets = (_Target * len(targets))()
        for native, target in zip(self._targets, targets, strict=True):
            native.start, native.end, native.to = target.start, target.end, _address(target.view)
        self._views = [target.view for target in targets]
        self._reception.targets = ctypes.addressof(self._targets)
        self._reception.num_targets = len(targets)
        self._version = self._connection.incoming.version


class Scratch:
    """Memory that one batch passes through."""

    def __init__(self) -> None:
        self.runs = (ctypes.c_uint8 * (_MAX_RUNS * _RUN.size))()
        self.run_bytes = memoryview(self.runs).cast("B")
        self.controls = (ctypes.c_uint8 * _CONTROLS_BYTES)()
        self.buffers = (ctypes.c_uint8 * (_BATCH * _BUFFER_BYTES))()


class Waiter:
    """Waits for descriptors, to the microsecond; select.epoll waits in whole milliseconds."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._library = library()
        self._descriptors = (ctypes.c_int32 * max(1, len(descriptors)))(*descriptors)
        self._ready = (ctypes.c_uint8 * max(1, len(descriptors)))()
        self._num_descriptors = len(descriptors)

    def wait(self, timeout_s: float, quiet_s: float = 0.0) -> list[int]:
        """The indices of those that can be read, when there are any or the time is over. The first `quiet_s` of it
        only the last descriptor is looked at."""
        timeout_ns = int(min(max(clock.machine_s(timeout_s), 0.0), 3600.0) * 1e9)
        quiet_ns = min(int(clock.machine_s(quiet_s) * 1e9), timeout_ns)
        found: int = self._library.wait_readable(
            self._descriptors, self._num_descriptors, quiet_ns, timeout_ns, self._ready
        )
        if found < 0:
            raise TransportError(f"cannot wait for {self._num_descriptors} sockets: {errno.errorcode.get(-found)}")
        if not found:
            return []
        return [index for index, ready in enumerate(bytes(self._ready)[: self._num_descriptors]) if ready]


class Alarm:
    """A descriptor that can be read once a time is over (timerfd_create(2)): setting it wakes nobody, as an event would
    whom it is meant for."""

    def __init__(self) -> None:
        """Raises TransportError where there are no more descriptors."""
        self._library = library()
        self.descriptor: int = self._library.open_alarm()
        if self.descriptor < 0:
            raise TransportError(f"cannot set an alarm: {errno.errorcode.get(-self.descriptor)}")

    def set(self, after_s: float) -> None:
        """Once, in so long."""
        self._library.set_alarm(self.descriptor, max(1, int(clock.machine_s(after_s) * 1e9)))

    def clear(self) -> None:
        """It does not go off, or has not."""
        self._library.set_alarm(self.descriptor, 0)
