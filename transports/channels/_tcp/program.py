"""A schedule as the native engine (tcp.c) takes it, and the engine itself."""

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from switch_agg.native.build import build
from switch_agg.native.layout import layout_of
from transports.channels.base import BUFFERS, Header
from transports.channels.framing import DTYPE_BYTES, HEADER_BYTES, pack
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.native import load_library

SOURCE: Final = Path(__file__).with_name("tcp.c")
WINDOW: Final = 4
"""Messages of a peer that may be held back because what they are added to is not ready."""

DONE, WOKEN, LATE, ENDING, LOST, MISMATCH = range(6)
SEND, RECEIVE, REDUCE, ADD = range(4)
_KINDS: Final[Mapping[str, int]] = {"send": SEND, "receive": RECEIVE, "reduce": REDUCE, "add": ADD}
_MAX_ENDED: Final = 64
_ELEMENT_BY_ELEMENT: Final = ("-fno-tree-vectorize", "-fno-tree-slp-vectorize")
"""Of gcc and clang."""
_ALIGNMENT: Final = 64

_STEP: Final = np.dtype(
    [("view", "u8"), ("addend", "u8"), ("num_bytes", "u8")]
    + [
        (name, "u4")
        for name in (
            "kind", "lane", "position", "waiting", "first_successor", "num_successors", "arrived", "done",
        )
    ]
)  # fmt: skip


class Connection(ctypes.Structure):
    """struct connection of tcp.c."""

    _fields_ = (
        ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
        ("socket", ctypes.c_int32),
        ("ending", ctypes.c_uint32),
        ("low_water", ctypes.c_uint32),
        ("cut_short", ctypes.c_uint32),
        ("num_zero_copy", ctypes.c_uint32),
        ("num_completed", ctypes.c_uint32),
        ("num_notified", ctypes.c_uint32),
        ("num_copied", ctypes.c_uint32),
    )


class Lane(ctypes.Structure):
    """struct lane of tcp.c."""

    _fields_ = (
        ("connection", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("moved", ctypes.c_uint64),
        ("moved_ns", ctypes.c_int64),
        ("added", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("first", ctypes.c_uint32),
        ("num_steps", ctypes.c_uint32),
        ("next", ctypes.c_uint32),
        ("oldest", ctypes.c_uint32),
        ("sends", ctypes.c_uint32),
        ("blocked", ctypes.c_uint32),
        ("agreed", ctypes.c_uint32),
        ("first_phase", ctypes.c_uint32),
        ("header", ctypes.c_uint8 * HEADER_BYTES),
    )


_OPERANDS: Final = np.dtype([("sequence", "u8"), ("deadline_ns", "i8"), ("slots", "u8"), ("bases", "u8", len(BUFFERS))])
_PACK_OPERANDS: Final = struct.Struct(f"=QqQ{len(BUFFERS)}Q").pack_into
"""Into the same: a call with as many arguments would make an object of each."""


class Run(ctypes.Structure):
    """struct run of tcp.c."""

    _fields_ = (
        ("operands", ctypes.c_uint8 * _OPERANDS.itemsize),
        ("schedule", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("successors", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("slot_bytes", ctypes.c_uint64),
        ("first_ns", ctypes.c_int64),
        ("sequence", ctypes.c_uint64),
        ("num_steps", ctypes.c_uint32),
        ("num_lanes", ctypes.c_uint32),
        ("num_left", ctypes.c_uint32),
        ("element_bytes", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("reduction", ctypes.c_uint32),
        ("low_water_bytes", ctypes.c_uint32),
        ("same_schedule", ctypes.c_uint32),
        ("num_streams", ctypes.c_uint32),
        ("window", ctypes.c_uint32),
        ("zero_copy_bytes", ctypes.c_uint32),
        ("epoll", ctypes.c_int32),
        ("wake", ctypes.c_int32),
        ("failed_peer", ctypes.c_int32),
        ("header", ctypes.c_uint8 * HEADER_BYTES),
        ("num_ended", ctypes.c_int32),
        ("ended", ctypes.c_int32 * _MAX_ENDED),
    )


def build_library(*, vectors: bool = True) -> Path:
    """Where it is, built if need be; without `vectors` one that adds element by element, to compare with. Raises
    UnsupportedError where it cannot be."""
    layouts = (
        layout_of("step", _STEP),
        layout_of("connection", Connection),
        layout_of("lane", Lane),
        layout_of("operands", _OPERANDS),
        layout_of("run", Run),
    )
    return build(SOURCE, "library", layouts=layouts, further_flags=() if vectors else _ELEMENT_BY_ELEMENT)


@cache
def library(*, vectors: bool = True) -> ctypes.CDLL | None:
    """The functions of :func:`build_library`; None, or UnsupportedError, as :func:`load_library` says, where there is
    no C compiler."""
    found = load_library(
        partial(build_library, vectors=vectors),
        "collectives over tcp take more of the processor's time than they need to",
    )
    if found is None:
        return None
    found.resume.argtypes = (ctypes.c_void_p,)
    found.run_schedule.argtypes = (ctypes.c_void_p,)
    found.combine.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    found.combine.restype = None
    return found


class LaneName(NamedTuple):
    """The messages to, or from, one peer that travel over one of their connections."""

    peer: int
    sends: bool
    stream: int
    """0: the connection of the first message."""


class Engine(NamedTuple):
    """What all schedules of an endpoint share, where the native engine finds it."""

    epoll: int
    wake: int
    num_streams: int
    low_water_bytes: int
    zero_copy_bytes: int
    """Messages as long as that are sent without a copy; 0: none."""


class TcpProgram:
    """A schedule in arrays, to be carried out again and again, and the state of the present run, which the native
    engine and its caller share."""

    def __init__(
        self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int, engine: Engine
    ) -> None:
        """`header` is that of every message but for sequence, phase and count, `reduction` an index in REDUCTIONS.
        Messages to, and from, a peer take the engine's streams in turn."""
        num_streams, element_bytes = engine.num_streams, DTYPE_BYTES[header.dtype]
        lanes = {
            LaneName(peer, direction == "send", stream): indices[stream::num_streams]
            for (peer, direction), indices in order.lanes.items()
            for stream in range(min(num_streams, len(indices)))
        }
        self.lanes: Final = tuple(lanes)
        self.header: Final = header
        addends = [step.source or step.chunk for step in steps]
        self._schedule = np.zeros(len(steps), _STEP)
        self._schedule["view"] = [step.chunk.start * element_bytes for step in steps]
        self._schedule["addend"] = [chunk.start * element_bytes for chunk in addends]
        self._schedule["num_bytes"] = [step.chunk.count * element_bytes for step in steps]
        self._schedule["kind"] = [_KINDS[step.kind] for step in steps]
        self._schedule["waiting"] = order.num_predecessors
        self._schedule["num_successors"] = [len(later) for later in order.successors]
        self._schedule["first_successor"] = np.cumsum([0, *map(len, order.successors)])[:-1]
        window = -(-WINDOW // num_streams)
        longest = max((step.chunk.count for step in steps if step.kind == "reduce"), default=0) * element_bytes
        slot_bytes = -(-longest // _ALIGNMENT) * _ALIGNMENT
        self.states: Final = (Lane * len(lanes))()
        begun = self.slots_bytes = 0
        for number, (state, (name, indices)) in enumerate(zip(self.states, lanes.items(), strict=True)):
            self._schedule["lane"][list(indices)] = number
            self._schedule["position"][list(indices)] = range(len(indices))
            state.first, state.num_steps = begun, len(indices)
            state.sends, state.first_phase = name.sends, name.stream
            begun += len(indices)
            if not name.sends:
                state.slots = self.slots_bytes
                self.slots_bytes += window * slot_bytes
        self._steps = np.empty_like(self._schedule)
        self._order = np.array([index for indices in lanes.values() for index in indices], np.uint32)
        self._successors = np.array([later for each in order.successors for later in each], np.uint32)
        self._buffer_of = np.array(
            [
                BUFFERS.index(chunk.buffer)
                for step, addend in zip(steps, addends, strict=True)
                for chunk in (step.chunk, addend)
            ],
            np.uint32,
        )
        self._element_bytes = element_bytes
        self._num_streams = num_streams
        self.run: Final = Run(
            schedule=self._schedule.ctypes.data,
            steps=self._steps.ctypes.data,
            lanes=ctypes.addressof(self.states),
            order=self._order.ctypes.data,
            successors=self._successors.ctypes.data,
            buffers=self._buffer_of.ctypes.data,
            slot_bytes=slot_bytes,
            num_steps=len(steps),
            num_lanes=len(self.lanes),
            element_bytes=element_bytes,
            type=header.dtype,
            reduction=reduction,
            low_water_bytes=engine.low_water_bytes,
            same_schedule=header.total > 0,
            num_streams=num_streams,
            window=window,
            zero_copy_bytes=engine.zero_copy_bytes,
            epoll=engine.epoll,
            wake=engine.wake,
            header=(ctypes.c_uint8 * HEADER_BYTES)(*pack(header)),
        )
        native = library()
        assert native is not None, "who has no engine makes no programs"
        pointer = ctypes.c_void_p(ctypes.addressof(self.run))
        self.resume: Final[Callable[[], int]] = partial(native.resume, pointer)
        """Until it is DONE or the caller has to look: one of the outcomes."""
        self._begin: Final[Callable[[], int]] = partial(native.run_schedule, pointer)

    def begin(self, sequence: int, deadline_ns: int, slots: int, addresses: tuple[int, ...]) -> int:
        """The same as :attr:`resume` from the beginning: as operation of that sequence number, by that time, with the
        memory at `slots` for messages to be added, on the BUFFERS at those addresses."""
        _PACK_OPERANDS(self.run, 0, sequence, deadline_ns, slots, *addresses)
        return self._begin()

    def place(self, connections: Sequence[Connection]) -> None:
        """Where each lane travels."""
        for state, connection in zip(self.states, connections, strict=True):
            state.connection = ctypes.addressof(connection)

    def has_begun(self, sequence: int) -> bool:
        """Whether the engine has begun with that operation."""
        return bool(self.run.sequence == sequence)

    def awaits(self, number: int) -> bool:
        """Whether a lane has messages left."""
        state = self.states[number]
        return bool(state.next < state.num_steps)

    def owed_bytes(self, number: int) -> int:
        """What is still to come, or to go, in a lane, headers included."""
        state = self.states[number]
        left = self._order[state.first + state.next : state.first + state.num_steps]
        payload_bytes = int(self._schedule["num_bytes"][left].sum())
        return len(left) * HEADER_BYTES + payload_bytes - int(state.moved)

    def awaited(self, number: int) -> Iterator[tuple[int, int, int]]:
        """(phase, elements, bytes) of each message that a lane has left, the one under way first."""
        state = self.states[number]
        for position in range(state.next, state.num_steps):
            num_bytes = int(self._steps[self._order[state.first + position]]["num_bytes"])
            yield state.first_phase + position * self._num_streams, num_bytes // self._element_bytes, num_bytes

    def is_ready(self, number: int) -> bool:
        """Whether it has messages left and the next one waits for none of our own steps, or the peer has not yet said
        that it has what was sent without a copy."""
        state = self.states[number]
        if not self.awaits(number):
            return bool(state.sends and state.oldest < state.num_steps)
        return bool(self._step(number)["kind"] == REDUCE or not self._step(number)["waiting"])

    def under_way(self, number: int) -> tuple[int, int]:
        """(phase, elements) of the message that a lane is at."""
        state = self.states[number]
        phase = state.first_phase + min(state.next, state.num_steps - 1) * self._num_streams
        return phase, int(self._step(number)["num_bytes"]) // self._element_bytes

    def _step(self, number: int) -> Any:
        state = self.states[number]
        return self._steps[self._order[state.first + min(state.next, state.num_steps - 1)]]
