"""A schedule as the native engine (tcp.c) takes it, and the engine itself."""

import ctypes
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agg.errors import UnsupportedError
from switch_agg.native.build import build
from transports.collectives.base import Step
from transports.collectives.dependencies import Dependencies
from transports.framing import HEADER_BYTES

_log: Final = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("tcp.c")
WINDOW: Final = 4
"""Messages of a lane that may be held back because what they are added to is not ready; as in tcp.c."""
SUMMED: Final = ("float32", "float64", "int32", "int64")
"""What it adds, in the order of tcp.c's `enum type`."""

DONE, WOKEN, LATE, ENDING, LOST, MISMATCH = range(6)
SEND, RECEIVE, REDUCE = range(3)
_KINDS: Final[Mapping[str, int]] = {"send": SEND, "receive": RECEIVE, "reduce": REDUCE}
_MAX_ENDED: Final = 64

_STEP: Final = np.dtype(
    [("view", "u8"), ("num_bytes", "u8")]
    + [
        (name, "u4")
        for name in (
            "kind", "lane", "position", "waiting", "first_successor", "num_successors", "arrived", "done",
        )
    ]
)  # fmt: skip
_LANE: Final = np.dtype(
    [("slots", "u8"), ("moved", "u8"), ("num_bytes", "u8"), ("moved_ns", "i8"), ("socket", "i4"), ("error", "i4")]
    + [
        (name, "u4")
        for name in ("first", "num_steps", "next", "oldest", "sends", "blocked", "ending", "agreed", "low_water")
    ]
    + [("header", f"V{HEADER_BYTES}"), ("added", "u4")]
)


class Run(ctypes.Structure):
    """struct run of tcp.c."""

    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("successors", ctypes.c_void_p),
        ("slot_bytes", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_int64),
        ("first_ns", ctypes.c_int64),
        ("num_lanes", ctypes.c_uint32),
        ("num_left", ctypes.c_uint32),
        ("element_bytes", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("low_water_bytes", ctypes.c_uint32),
        ("same_schedule", ctypes.c_uint32),
        ("epoll", ctypes.c_int32),
        ("wake", ctypes.c_int32),
        ("culprit", ctypes.c_int32),
        ("header", ctypes.c_uint8 * HEADER_BYTES),
        ("num_ended", ctypes.c_int32),
        ("ended", ctypes.c_int32 * _MAX_ENDED),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The functions, built if need be; None, and a word in the log, where there is no C compiler."""
    try:
        found = ctypes.CDLL(str(build(SOURCE, "library")))
    except UnsupportedError as error:
        _log.warning("collectives over tcp take more of the processor's time than they need to: %s", error)
        return None
    found.run_schedule.argtypes = (ctypes.c_void_p,)
    return found


class LaneName(NamedTuple):
    """The messages to, or from, one peer."""

    peer: int
    sends: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpProgram:
    """A schedule in arrays; :meth:`begin` makes a copy to be worked off. Steps that move nothing are not for it."""

    lanes: tuple[LaneName, ...]
    buffers: tuple[str, ...]
    """The names of those that the steps use."""
    buffer_of: npt.NDArray[np.int64]
    """For each step, which of them."""
    steps: npt.NDArray[Any]
    """With offsets instead of addresses."""
    lane_states: npt.NDArray[Any]
    order: npt.NDArray[np.uint32]
    successors: npt.NDArray[np.uint32]
    slot_bytes: int
    """Of the longest message that is to be added, rounded up to whole elements of any type."""
    element_bytes: int

    @property
    def slots_bytes(self) -> int:
        """Of memory that it needs for messages to be added."""
        return WINDOW * self.slot_bytes * sum(not lane.sends for lane in self.lanes)


def program_of(steps: Sequence[Step], order: Dependencies, element_bytes: int) -> TcpProgram | None:
    """The schedule in arrays; None for one with steps that move nothing."""
    if not steps or any(step.kind == "add" for step in steps):
        return None
    names = [LaneName(peer, direction == "send") for peer, direction in order.lanes]
    buffers = sorted({step.chunk.buffer for step in steps})
    arrays = np.zeros(len(steps), _STEP)
    arrays["view"] = [step.chunk.start * element_bytes for step in steps]
    arrays["num_bytes"] = [step.chunk.count * element_bytes for step in steps]
    arrays["kind"] = [_KINDS[step.kind] for step in steps]
    arrays["waiting"] = order.num_predecessors
    arrays["num_successors"] = [len(later) for later in order.successors]
    arrays["first_successor"] = np.cumsum(arrays["num_successors"]) - arrays["num_successors"]
    states = np.zeros(len(names), _LANE)
    begun = 0
    for number, indices in enumerate(order.lanes.values()):
        arrays["lane"][list(indices)] = number
        arrays["position"][list(indices)] = range(len(indices))
        states[number]["first"], states[number]["num_steps"] = begun, len(indices)
        begun += len(indices)
    states["sends"] = [name.sends for name in names]
    reduced = [step.chunk.count * element_bytes for step in steps if step.kind == "reduce"]
    return TcpProgram(
        lanes=tuple(names),
        buffers=tuple(buffers),
        buffer_of=np.array([buffers.index(step.chunk.buffer) for step in steps]),
        steps=arrays,
        lane_states=states,
        order=np.array([index for indices in order.lanes.values() for index in indices], np.uint32),
        successors=np.array([later for each in order.successors for later in each], np.uint32),
        slot_bytes=-(-max(reduced, default=0) // 64) * 64,
        element_bytes=element_bytes,
    )


class TcpRun:
    """One run of a program: the state that the native engine and its caller share."""

    def __init__(self, program: TcpProgram, addresses: Mapping[str, int], slots: int, *, element_type: int) -> None:
        """`addresses` of the buffers, and of the memory for messages to be added."""
        self.program = program
        self._steps = program.steps.copy()
        self._steps["view"] += np.array([addresses[name] for name in program.buffers], np.uint64)[program.buffer_of]
        self.lanes = program.lane_states.copy()
        receiving = np.cumsum(self.lanes["sends"] == 0) - 1
        self.lanes["slots"] = slots + receiving.clip(0) * WINDOW * program.slot_bytes
        self.native = Run(
            steps=self._steps.ctypes.data,
            lanes=self.lanes.ctypes.data,
            order=program.order.ctypes.data,
            successors=program.successors.ctypes.data,
            slot_bytes=program.slot_bytes,
            num_lanes=len(program.lanes),
            num_left=len(self._steps),
            element_bytes=program.element_bytes,
            type=element_type,
        )

    def go_on(self) -> int:
        """Until it is DONE or the caller has to look: one of the outcomes."""
        native = library()
        assert native is not None, "who has no engine makes no runs"
        outcome: int = native.run_schedule(ctypes.byref(self.native))
        return outcome

    def awaits(self, number: int) -> bool:
        """Whether a lane has messages left."""
        lane = self.lanes[number]
        return bool(lane["next"] < lane["num_steps"])

    def under_way(self, number: int) -> tuple[int, int]:
        """(position, elements) of the message that a lane is at."""
        lane = self.lanes[number]
        step = self._steps[self.program.order[int(lane["first"]) + int(lane["next"])]]
        return int(lane["next"]), int(step["num_bytes"]) // self.program.element_bytes

    def is_ready(self, number: int) -> bool:
        """Whether a lane has messages left and the next one waits for none of our own steps."""
        if not self.awaits(number):
            return False
        lane = self.lanes[number]
        step = self._steps[self.program.order[int(lane["first"]) + int(lane["next"])]]
        return bool(step["kind"] == REDUCE or not step["waiting"])
