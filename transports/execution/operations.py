"""Blocking operations on tensors over one endpoint, for the one thread that drives it.

A job of :meth:`transports.execution.communicator.Communicator.submit` gets a Transport and runs its phases with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal, get_args

import torch

from transports.channels.base import Channel, Endpoint
from transports.channels.framing import DTYPES, OPERATIONS, REDUCTIONS, argument, group_id
from transports.collectives.base import Buffer, Collective, Operation, Reducer
from transports.collectives.schedules.segments import parts
from transports.errors import OptionError
from transports.execution.executor import NUM_PROGRAMS, Exchange, Executor, Program, Reduction, Splits
from transports.execution.tensors import flat, nothing
from transports.execution.trace import CodecAccount
from transports.group import Group

ReduceOperation = Literal["sum", "product", "min", "max", "avg", "band", "bor", "bxor"]

_DTYPE_INDEX: Final = {getattr(torch, name): index for index, name in enumerate(DTYPES)}
_BOOL_REDUCTIONS: Final[dict[ReduceOperation, Reduction]] = {
    "sum": "max",
    "max": "max",
    "product": "min",
    "min": "min",
    "band": "min",
    "bor": "max",
    "bxor": "bxor",
}
_REDUCE_OPERATIONS: Final = get_args(ReduceOperation)
_BITWISE: Final = ("band", "bor", "bxor")


def check(tensor: torch.Tensor, reduce_operation: str = "sum") -> None:
    """Raises OptionError for what cannot be exchanged."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise OptionError(f"tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
    check_memory(tensor)
    if tensor.dtype not in _DTYPE_INDEX:
        raise OptionError(f"{tensor.dtype} cannot be exchanged; allowed: {', '.join(DTYPES)}")
    if reduce_operation not in _REDUCE_OPERATIONS:
        raise OptionError(f"{reduce_operation!r} is not a reduction; allowed: {', '.join(_REDUCE_OPERATIONS)}")
    if tensor.dtype == torch.bool and reduce_operation == "avg":
        raise OptionError("truth values have no average")
    if tensor.is_floating_point() and reduce_operation in _BITWISE:
        raise OptionError(f"{reduce_operation} works on the bits of whole numbers, not on {tensor.dtype}")


def check_memory(tensor: torch.Tensor) -> None:
    """Raises OptionError for a tensor whose storage was freed, as `untyped_storage().resize_(0)` does."""
    if not tensor.data_ptr() and tensor.numel():
        raise OptionError(f"this tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")


def check_written(tensor: torch.Tensor) -> None:
    """Raises OptionError for what cannot be written to: elements that share memory, as expand() makes them."""
    if tensor.is_contiguous():
        return
    if any(not stride and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise OptionError(
            f"elements of this tensor share memory (shape {tuple(tensor.shape)}, strides {tensor.stride()}), so that "
            "a result cannot be written to it: clone() it first"
        )


def dtype_index(dtype: torch.dtype) -> int:
    """In DTYPES, of one that :func:`check` allows."""
    return _DTYPE_INDEX[dtype]


def check_parts(whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """Raises OptionError unless `whole` is `size` times as long as `part`, of the same type."""
    if whole.dtype != part.dtype or whole.numel() != size * part.numel():
        raise OptionError(
            f"with {size} ranks {part.numel()} {part.dtype} go with {size * part.numel()}, "
            f"not with {whole.numel()} {whole.dtype}"
        )


def reduction_of(dtype: torch.dtype, op: ReduceOperation) -> Reduction:
    """What is done to two values when they meet; truth values meet as the bytes 0 and 1."""
    return _BOOL_REDUCTIONS[op] if dtype == torch.bool else "sum" if op == "avg" else op


def check_root(root: int, size: int) -> None:
    """Raises OptionError unless it is a rank."""
    if not 0 <= root < size:
        raise OptionError(f"root {root} is not among {size} ranks")


class Transport:
    """One member's blocking operations. Every member must call the same ones in the same order."""

    def __init__(self, collective: Collective, channel: Channel, group: Group) -> None:
        """Connect to all members. Raises what :meth:`Channel.open` raises."""
        self.rank = group.rank
        self.size = group.size
        self._endpoint = channel.open(replace(group, size=group.size + collective.num_servers))
        self.deadline_s = 0.0
        """Of the present job, on time.monotonic()."""
        self.first_byte_s: float | None = None
        """When the first message of the present job completed."""
        self.codec = CodecAccount()
        """What codecs did in the present job."""
        self.reducer = self._open_reducer(collective, group)
        """Sums floats in the schedule's stead."""
        self._group = group_id(group.name)
        self._sequence = 0
        self._executor = Executor(
            collective,
            self._endpoint,
            world=collective.world(group.size, racks=group.racks),
            participant=group.rank,
            group=self._group,
        )

    def _open_reducer(self, collective: Collective, group: Group) -> Reducer | None:
        try:
            return collective.reducer(group)
        except BaseException:
            self._endpoint.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """For jobs that send by themselves."""
        return self._endpoint

    def begin(self, deadline_s: float) -> None:
        """A new job, which must be done by then (on time.monotonic())."""
        self.deadline_s = deadline_s
        self.first_byte_s = None
        self.codec = CodecAccount()

    def forget(self) -> None:
        """What was worked out for exchanges and is kept, with its memory: the next of each kind is worked out anew."""
        self._executor.program.cache_clear()  # type: ignore[attr-defined]

    def cancel(self) -> None:
        """From another thread: a sum of the reducer that is under way fails soon."""
        if self.reducer is not None:
            self.reducer.cancel()

    def close(self) -> None:
        """Leave the group. Idempotent."""
        try:
            if self.reducer is not None:
                self.reducer.close()
        finally:
            self._endpoint.close()

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> None:
        """Reduce over all ranks, in place."""
        check(tensor, op)
        values, restore = flat(tensor)
        if not self._summed_by_reducer(values, op):
            self._run("all_reduce", {"output": values}, values.numel(), tensor.dtype, op)
        _average(values, op, self.size)
        restore()

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Give all ranks the root's values, in place."""
        check(tensor)
        check_root(root, self.size)
        values, restore = flat(tensor)
        self._run("broadcast", {"output": values}, values.numel(), tensor.dtype, root=root)
        restore()

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002 (torch's word)
        """Rank r's input becomes part r of everybody's output."""
        check(output)
        check_parts(output, input, self.size)
        values, restore = flat(output)
        part, _ = flat(input)
        start, count = parts(values.numel(), self.size)[self.rank]
        values[start : start + count].copy_(part)
        self._run("all_gather", {"output": values}, values.numel(), output.dtype)
        restore()

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 (torch's word)
        op: ReduceOperation = "sum",
    ) -> None:
        """Rank r's output becomes the reduction over all ranks of part r of their inputs."""
        check(output, op)
        check_parts(input, output, self.size)
        values, restore = flat(output)
        whole = flat(input)[0].clone()  # the schedule sums in it, and the caller's input stays as it is
        start, count = parts(whole.numel(), self.size)[self.rank]
        values.copy_(whole[start : start + count])
        self._run("reduce_scatter", {"input": whole, "output": values}, whole.numel(), output.dtype, op)
        _average(values, op, self.size)
        restore()

    def reduce(self, tensor: torch.Tensor, root: int = 0, op: ReduceOperation = "sum") -> None:
        """The root's values become the reduction over all ranks; the others' stay as they are."""
        check(tensor, op)
        check_root(root, self.size)
        values, restore = flat(tensor)
        if self.rank != root:
            values = values.clone()  # partial sums pass through it
        self._run("reduce", {"output": values}, values.numel(), tensor.dtype, op, root)
        if self.rank == root:
            _average(values, op, self.size)
            restore()

    def gather(self, output: torch.Tensor | None, input: torch.Tensor, root: int = 0) -> None:  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others have none."""
        check(input)
        check_root(root, self.size)
        part, _ = flat(input)
        buffers: dict[Buffer, torch.Tensor] = {"input": part}
        restore: Callable[[], None] = nothing
        if self.rank == root:
            assert output is not None, "the root has an output"
            check_parts(output, input, self.size)
            values, restore = flat(output)
            values[root * len(part) :][: len(part)].copy_(part)
            buffers["output"] = values
        self._run("gather", buffers, self.size * part.numel(), input.dtype, root=root)
        restore()

    def scatter(self, output: torch.Tensor, input: torch.Tensor | None, root: int = 0) -> None:  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others have no input."""
        check(output)
        check_root(root, self.size)
        part, restore = flat(output)
        buffers: dict[Buffer, torch.Tensor] = {"output": part}
        if self.rank == root:
            assert input is not None, "the root has an input"
            check_parts(input, output, self.size)
            buffers["input"], _ = flat(input)
            part.copy_(buffers["input"][root * len(part) :][: len(part)])
        self._run("scatter", buffers, self.size * part.numel(), output.dtype, root=root)
        restore()

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """inputs[p] of rank r becomes outputs[r] of rank p; lengths may differ from pair to pair."""
        for tensor in (*outputs, *inputs):
            check(tensor)
        sent, received = _in_a_row(inputs), _in_a_row(outputs)
        if sent.untyped_storage().data_ptr() == received.untyped_storage().data_ptr():
            sent = sent.clone()  # what arrives must not change what is still to go
        splits = _runs(inputs), _runs(outputs)
        places = [received[start : start + count] for start, count in splits[1]]
        start, count = splits[0][self.rank]
        places[self.rank].copy_(sent[start : start + count])
        self._run("all_to_all", {"input": sent, "output": received}, len(sent), inputs[0].dtype, splits=splits)
        for output, place in zip(outputs, places, strict=True):
            plain = output.view(torch.uint8) if output.dtype == torch.bool else output
            if plain.data_ptr() != place.data_ptr():
                plain.copy_(place.view(output.shape))

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._run("barrier", {"output": torch.zeros(1, dtype=torch.uint8, device="cpu")}, 1, torch.uint8)

    def _summed_by_reducer(self, values: torch.Tensor, op: ReduceOperation) -> bool:
        """Whether the values have become the sum, by the reducer or by a member that still had its last one."""
        if self.reducer is None:
            return False
        if not values.numel():
            return True  # whoever still has a reducer would not wait for those that have lost theirs
        if not self.reducer.adds(values.dtype, op):
            return False
        return self.reducer.all_reduce(values) or self._settle(values)

    def _settle(self, values: torch.Tensor | None = None) -> bool:
        """See :meth:`Reducer.settle`."""

        def tell(count: int) -> list[int]:
            counts = torch.empty(self.size, dtype=torch.int64)
            # To everybody at once: an all_gather goes around the ring, and every operation after a sum would wait.
            self.all_to_all(list(counts.chunk(self.size)), [torch.tensor([count])] * self.size)
            return [int(each) for each in counts]

        return self.reducer is not None and self.reducer.settle(tell, self.broadcast, values)

    def _run(
        self,
        operation: Operation,
        buffers: dict[Buffer, torch.Tensor],
        num_elements: int,
        dtype: torch.dtype,
        op: ReduceOperation = "sum",
        root: int = 0,
        splits: Splits | None = None,
    ) -> None:
        self._settle()
        program = self._executor.program(_exchange(operation, num_elements, dtype, op, root, splits))
        self.exchange(program, buffers, self.next_sequence)

    def exchange(self, program: Program, buffers: Mapping[Buffer, torch.Tensor], sequence: int) -> None:
        """The operation of that number; does nothing where it has been done. One that was left in the middle, by an
        exception of a signal's handler, goes on where its schedule is compiled."""
        if sequence == self._sequence:
            return
        first_s = self._executor.run(program, buffers, sequence=sequence, deadline_s=self.deadline_s)
        if self.first_byte_s is None:
            self.first_byte_s = first_s
        self._sequence = sequence

    @property
    def next_sequence(self) -> int:
        """The number of the operation that comes next."""
        return self._sequence + 1

    def single(
        self, operation: Operation, tensor: torch.Tensor, op: ReduceOperation = "sum", root: int = 0
    ) -> Program | None:
        """An operation of one tensor, which :func:`check` has allowed, as one program on the tensor's own memory that
        the endpoint runs by itself; None where there is more to do."""
        if self.reducer is not None or op == "avg" or not tensor.is_contiguous() or tensor.is_neg():
            return None
        program = self._executor.program(_exchange(operation, tensor.numel(), tensor.dtype, op, root, None))
        return program if program.is_compiled else None


@lru_cache(maxsize=NUM_PROGRAMS)
def _exchange(
    operation: Operation,
    num_elements: int,
    dtype: torch.dtype,
    op: ReduceOperation,
    root: int,
    splits: Splits | None,
) -> Exchange:
    named = argument(OPERATIONS.index(operation), REDUCTIONS.index(op), root)
    return Exchange(operation, num_elements, _DTYPE_INDEX[dtype], reduction_of(dtype, op), root, named, splits)


def _in_a_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their elements one after the other, (n,): their own memory where they lie so already, else a copy."""
    parts = [flat(tensor)[0] for tensor in tensors]
    first = parts[0]
    place, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        if part.data_ptr() != place or part.untyped_storage().data_ptr() != storage:
            return torch.cat(parts)
        place += part.nbytes
    return first.as_strided((sum(map(len, parts)),), (1,))


def _runs(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """(start, count) of each tensor when they lie one after the other."""
    ends = tuple(accumulate(tensor.numel() for tensor in tensors))
    return tuple((end - tensor.numel(), tensor.numel()) for end, tensor in zip(ends, tensors, strict=True))


def _average(values: torch.Tensor, op: ReduceOperation, size: int) -> None:
    if op == "avg":
        values.div_(size, rounding_mode=None if values.is_floating_point() else "trunc")
