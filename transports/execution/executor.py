"""Runs a schedule over an endpoint: every step as early as the steps before it allow.

Sends and receives are posted as soon as their predecessors are done; a message that is to be added is received into a
scratch slot, whatever its chunk is waiting for, and added at once while it is in the processor's cache. What a schedule
looks like is worked out once per size and kept, since training repeats the same few sizes for ever.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from transports.channels.base import CompiledSchedule, Endpoint, Header
from transports.channels.framing import DTYPE_BYTES, OPERATIONS, REDUCTIONS
from transports.collectives.base import Buffer, Collective, Operation, Step, World, reach
from transports.collectives.schedules.defaults import schedule
from transports.collectives.schedules.dependencies import Dependencies, dependencies
from transports.collectives.schedules.direct import all_to_all
from transports.execution.tensors import raw

Reduction = Literal["sum", "product", "min", "max", "band", "bor", "bxor"]
_Slot = tuple[memoryview, Any]
"""Where a message arrives, as bytes and as elements."""
Splits = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""(start, count) of what is sent to each peer and of what is received from each."""

WINDOW: Final = 4
"""Messages posted at once from each peer: enough that the channel never runs dry. Those that are added need memory."""
SEND_WINDOW: Final = 16
"""Messages posted at once to each peer. More, because a channel that answers for delivery completes a message only when
the peer has acknowledged all of it: round trips, and what is lost and travels again, must not hold back the next."""
NUM_PROGRAMS: Final = 256
"""Sizes whose schedules are kept."""

_NUMPY_REDUCTIONS: Final[dict[Reduction, Callable[..., Any]]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_TORCH_REDUCTIONS: Final[dict[Reduction, Callable[..., Any]]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Exchange(NamedTuple):
    """An operation, but for its number, its buffers and its deadline: what is worked out once, and kept."""

    operation: Operation
    num_elements: int
    """Of the larger buffer."""
    dtype: int
    """Index in DTYPES of what is exchanged."""
    reduction: Reduction = "sum"
    root: int = 0
    argument: int = 0
    """Goes into the headers: see `transports.channels.framing.argument`."""
    splits: Splits | None = None
    """What this participant of an all_to_all sends to, and receives from, each peer, where these are not all alike."""


class _Move(NamedTuple):
    """A message, as posting it wants it."""

    step: int
    """Its index."""
    reduces: bool
    buffer: Buffer
    num_elements: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lane:
    """The messages to, or from, one peer, in the order in which they travel."""

    peer: int
    sends: bool
    moves: tuple[_Move, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A schedule, ready to run: by the endpoint itself, or message by message."""

    exchange: Exchange
    runs: "CompiledSchedule | _Messages | None"
    """None where there is nothing to do."""
    header: Header
    """Of every message, but for sequence, phase and count."""
    num_output: int
    """Elements of its output: a server's is its share."""
    num_scratch: int
    """Elements of the buffer that is the schedule's own."""

    @property
    def is_compiled(self) -> bool:
        """Whether the endpoint runs it by itself, so that one that was left in the middle can be gone on with: see
        :meth:`transports.channels.base.CompiledSchedule.run`."""
        return not isinstance(self.runs, _Messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Messages:
    """A schedule whose messages the executor posts one by one."""

    steps: Sequence[Step]
    lanes: tuple[_Lane, ...]
    lane_of: tuple[int, ...]
    num_predecessors: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]
    longest_reduced: int
    """Elements of the longest message that is to be added."""
    additions: tuple[int, ...]
    """The steps that move nothing."""


class _Arithmetic:
    """One element type: numpy where it has the type (it adds on one thread, whatever torch is set to), else torch."""

    def __init__(self, dtype: torch.dtype, reduction: Reduction) -> None:
        self.dtype = dtype
        self._numpy = dtype not in (torch.float16, torch.bfloat16)
        self.reduce = (_NUMPY_REDUCTIONS if self._numpy else _TORCH_REDUCTIONS)[reduction]

    def array(self, tensor: torch.Tensor) -> Any:
        """The tensor as `reduce` takes it."""
        return tensor.numpy() if self._numpy else tensor

    def slot(self, memory: npt.NDArray[np.uint8]) -> Any:
        """Raw memory as `reduce` takes it."""
        return self.array(torch.from_numpy(memory).view(self.dtype))


class Executor:
    """Runs one participant's part of collectives over one endpoint, on the thread that drives it."""

    def __init__(
        self, collective: Collective, endpoint: Endpoint, *, world: World, participant: int, group: int
    ) -> None:
        self._collective = collective
        self._endpoint = endpoint
        self._world = world
        self._participant = participant
        self._group = group
        self.program: Final[Callable[[Exchange], Program]] = lru_cache(maxsize=NUM_PROGRAMS)(self._compile)
        """What carries out an exchange, from any thread: compiled, and kept."""
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._slots: dict[torch.dtype, list[_Slot]] = {}
        self._scratch = np.empty(0, np.uint8)

    def run(
        self, program: Program, buffers: Mapping[Buffer, torch.Tensor], *, sequence: int, deadline_s: float
    ) -> float | None:
        """Run an operation, in place on contiguous tensors (n,); returns when its first message completed, if any did.
        Raises what `Endpoint.progress` raises."""
        runs, exchange = program.runs, program.exchange
        if runs is None:
            self._endpoint.skip(sequence)
            return None
        scratch = None
        if program.num_scratch:
            scratch = self._scratch_of(program.num_scratch * DTYPE_BYTES[exchange.dtype])
        if not isinstance(runs, _Messages):
            given, output = buffers.get("input"), buffers.get("output")
            return runs.run(
                sequence,
                deadline_s,
                0 if given is None else given.data_ptr(),
                0 if output is None else output.data_ptr(),
                0 if scratch is None else scratch.data_ptr(),
            )
        if scratch is not None:
            buffers = {**buffers, "scratch": scratch.view(next(iter(buffers.values())).dtype)}
        arithmetic = _Arithmetic(next(iter(buffers.values())).dtype, exchange.reduction)
        execution = _Execution(
            program=runs,
            endpoint=self._endpoint,
            header=program.header._replace(sequence=sequence),
            element_bytes=DTYPE_BYTES[exchange.dtype],
            buffers=buffers,
            arithmetic=arithmetic,
            slots=self._slots_of(runs, DTYPE_BYTES[exchange.dtype], arithmetic),
        )
        return execution.run(deadline_s)

    def _slots_of(self, program: _Messages, element_bytes: int, arithmetic: _Arithmetic) -> list[_Slot]:
        """Memory for arriving messages, kept from operation to operation."""
        num_slots = sum(not lane.sends for lane in program.lanes) * WINDOW if program.longest_reduced else 0
        slot_bytes = program.longest_reduced * element_bytes
        if len(self._memory) < num_slots or (num_slots and len(self._memory[0]) < slot_bytes):
            self._memory = [np.empty(-(-slot_bytes // 8) * 8, np.uint8) for _ in range(num_slots)]
            self._slots.clear()
        slots = self._slots.setdefault(arithmetic.dtype, [])
        slots += [(place.data, arithmetic.slot(place)) for place in self._memory[len(slots) :]]
        return slots

    def _scratch_of(self, num_bytes: int) -> torch.Tensor:
        """Memory for the schedule's own buffer, kept from operation to operation."""
        if len(self._scratch) < num_bytes:
            self._scratch = np.zeros(num_bytes, np.uint8)
        return torch.from_numpy(self._scratch[:num_bytes])

    def _compile(self, exchange: Exchange) -> Program:
        operation, num_elements, dtype, reduction, root, argument, splits = exchange
        if splits is None:
            steps = schedule(
                self._collective,
                operation,
                self._world,
                self._participant,
                num_elements,
                element_bytes=DTYPE_BYTES[dtype],
                root=root,
            )
        else:
            steps = all_to_all(self._participant, *splits)
        total = 0 if splits else num_elements  # with lengths of their own, members do not know each other's
        header = Header(self._group, 0, OPERATIONS.index(operation), dtype, 0, 0, argument, total)
        return Program(
            exchange=exchange,
            runs=self._prepared(steps, header, REDUCTIONS.index(reduction)) if steps else None,
            header=header,
            num_output=reach(steps, "output"),
            num_scratch=reach(steps, "scratch"),
        )

    def _prepared(self, steps: Sequence[Step], header: Header, reduction: int) -> "CompiledSchedule | _Messages":
        order = dependencies(steps)
        compiled = self._endpoint.compile(steps, order, header, reduction)
        return _messages(steps, order, DTYPE_BYTES[header.dtype]) if compiled is None else compiled


def _messages(steps: Sequence[Step], order: Dependencies, element_bytes: int) -> _Messages:
    lane_of = [0] * len(steps)
    for lane, indices in enumerate(order.lanes.values()):
        for index in indices:
            lane_of[index] = lane
    return _Messages(
        steps=steps,
        lanes=tuple(
            _Lane(
                peer=peer,
                sends=direction == "send",
                moves=tuple(_move(index, steps[index], element_bytes) for index in indices),
            )
            for (peer, direction), indices in order.lanes.items()
        ),
        lane_of=tuple(lane_of),
        num_predecessors=order.num_predecessors,
        successors=order.successors,
        longest_reduced=max((step.chunk.count for step in steps if step.kind == "reduce"), default=0),
        additions=tuple(index for index, step in enumerate(steps) if step.kind == "add"),
    )


def _move(index: int, step: Step, element_bytes: int) -> _Move:
    buffer, start, count = step.chunk
    return _Move(index, step.kind == "reduce", buffer, count, start * element_bytes, (start + count) * element_bytes)


class _Execution:
    """One run of a program."""

    def __init__(
        self,
        *,
        program: _Messages,
        endpoint: Endpoint,
        header: Header,
        element_bytes: int,
        buffers: Mapping[Buffer, torch.Tensor],
        arithmetic: _Arithmetic,
        slots: list[_Slot],
    ) -> None:
        self._program = program
        self._endpoint = endpoint
        self._header = header
        self._element_bytes = element_bytes
        self._views = {name: raw(buffer) for name, buffer in buffers.items()}
        self._arrays = {name: arithmetic.array(buffer) for name, buffer in buffers.items()}
        self._reduce = arithmetic.reduce
        self._slots = slots
        self._free_slots: dict[int, list[int]] = {}
        if program.longest_reduced:
            numbers = iter(range(len(slots)))
            for number, lane in enumerate(program.lanes):
                if not lane.sends:
                    self._free_slots[number] = [next(numbers) for _ in range(WINDOW)]
        self._waiting = list(program.num_predecessors)
        self._next = [0] * len(program.lanes)
        self._num_posted = [0] * len(program.lanes)
        self._num_left = len(program.steps)
        self._posted: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._arrived: set[int] = set()

    def run(self, deadline_s: float) -> float | None:
        """Run all steps; returns when the first message completed."""
        first_s = None
        progress, posted = self._endpoint.progress, self._posted
        with np.errstate(all="ignore"):  # infinite gradients are for the caller to judge, as they are in torch
            for index in self._program.additions:
                if not self._program.num_predecessors[index]:
                    self._complete(index)
            for number in range(len(self._program.lanes)):
                self._advance(number)
            while self._num_left:
                completions = progress(deadline_s)
                if first_s is None and completions:
                    first_s = time.monotonic()
                for (token,) in completions:
                    self._complete(posted.pop(token))
        return first_s

    def _advance(self, number: int) -> None:
        """Post whatever is next in a lane and ready."""
        lane = self._program.lanes[number]
        moves, peer = lane.moves, lane.peer
        position, num_posted = self._next[number], self._num_posted[number]
        window = SEND_WINDOW if lane.sends else WINDOW
        if position == len(moves) or num_posted == window:
            return
        group, sequence, operation, dtype, _, _, argument, total = self._header
        while position < len(moves) and num_posted < window:
            index, reduces, buffer, count, start_byte, end_byte = moves[position]
            header = Header(group, sequence, operation, dtype, count, position, argument, total)
            if reduces:
                slot = self._slot_of[index] = self._free_slots[number].pop()
                token = self._endpoint.post_receive(peer, header, self._slots[slot][0][: end_byte - start_byte])
            elif self._waiting[index]:
                break
            else:
                post = self._endpoint.post_send if lane.sends else self._endpoint.post_receive
                token = post(peer, header, self._views[buffer][start_byte:end_byte])
            self._posted[token] = index
            num_posted += 1
            position += 1
        self._next[number], self._num_posted[number] = position, num_posted

    def _complete(self, index: int) -> None:
        """A message has left or arrived, or nothing needs to; do what waited for it."""
        done = [index]
        program, waiting = self._program, self._waiting
        for index in done:
            moved = program.steps[index].source is None
            if not moved or index in self._slot_of:
                if waiting[index]:
                    self._arrived.add(index)
                    continue
                self._add(index)
            self._num_left -= 1
            for later in program.successors[index]:
                waiting[later] -= 1
                if not waiting[later]:
                    if later in self._arrived or program.steps[later].source is not None:
                        done.append(later)
                    else:
                        self._advance(program.lane_of[later])
            if moved:
                number = program.lane_of[index]
                self._num_posted[number] -= 1
                self._advance(number)

    def _add(self, index: int) -> None:
        _, (buffer, start, count), _, source, _ = self._program.steps[index]
        place = self._arrays[buffer][start : start + count]
        if source is not None:
            self._reduce(place, self._arrays[source.buffer][source.start : source.start + count], out=place)
            return
        slot = self._slot_of.pop(index)
        self._reduce(place, self._slots[slot][1][:count], out=place)
        self._free_slots[self._program.lane_of[index]].append(slot)
