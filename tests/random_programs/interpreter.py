# mypy: disable-error-code="no-any-return"
"""Runs one rank's part of a random program on groups of torch.distributed."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from tests.random_programs.programs import Action, Collective, Message, Operation, Program

Groups = Mapping[tuple[int, ...], "dist.ProcessGroup"]
Result = tuple[int, Any]
"""The number of an operation, and what this rank has of it: a list of numbers, or (source, numbers)."""
_FILLER: Final = 77


class _Begun(NamedTuple):
    """An operation whose work may still be under way."""

    work: Any
    result: Callable[[], Any]


def run(program: Program, rank: int, groups: Groups) -> list[Result]:
    """What each operation has left on this rank, in the order of the operations. Raises what torch raises."""
    return _Interpreter(program, rank, groups).run()


class _Interpreter:
    def __init__(self, program: Program, rank: int, groups: Groups) -> None:
        self._program = program
        self._rank = rank
        self._groups = groups
        self._begun: dict[int, _Begun] = {}
        self._results: list[Result] = []

    def run(self) -> list[Result]:
        for action in self._program.actions[self._rank]:
            self._do(action)
        return sorted(self._results, key=lambda result: result[0])

    def _do(self, action: Action) -> None:
        (number, *_) = action.operations
        if action.verb == "batch":
            self._batch(action.operations)
        elif action.verb == "wait":
            self._finish(number, self._begun.pop(number))
        else:
            begun = self._begin(self._program.operations[number], blocking=action.verb == "call")
            if action.verb == "call":
                self._results.append((number, begun.result()))
            else:
                self._begun[number] = begun

    def _finish(self, number: int, begun: _Begun) -> None:
        begun.work.wait()
        self._results.append((number, begun.result()))

    def _begin(self, operation: Operation, *, blocking: bool) -> _Begun:
        group = self._groups[operation.members]
        if isinstance(operation, Collective):
            return _collective(operation, self._rank, group, blocking=blocking)
        return self._message(operation, group, blocking=blocking)

    def _message(self, message: Message, group: Any, *, blocking: bool) -> _Begun:
        tensor, result = self._end(message)
        if self._rank == message.source:
            send: Callable[..., Any] = dist.send if blocking else dist.isend
            return _Begun(send(tensor, message.destination, group=group, tag=message.tag), result)
        source = None if message.any_source else message.source
        if blocking:
            found = dist.recv(tensor, source, group=group, tag=message.tag)
            return _Begun(None, lambda: (found, result()))
        work: Any = dist.irecv(tensor, source, group=group, tag=message.tag)
        if message.any_source:
            return _Begun(work, lambda: (dist.get_global_rank(group, work._source_rank()), result()))
        return _Begun(work, lambda: (source, result()))

    def _end(self, message: Message) -> tuple[torch.Tensor, Callable[[], Any]]:
        if self._rank == message.source:
            return values(message.seed, 0, message.length, message.dtype), list
        tensor = torch.full((message.room,), _FILLER, dtype=getattr(torch, message.dtype))
        return tensor, tensor.tolist

    def _batch(self, numbers: tuple[int, ...]) -> None:
        ops, results = [], []
        for number in numbers:
            message = self._program.operations[number]
            assert isinstance(message, Message)
            tensor, result = self._end(message)
            sends = self._rank == message.source
            peer = message.destination if sends else message.source
            call = dist.isend if sends else dist.irecv
            ops.append(dist.P2POp(call, tensor, peer, group=self._groups[message.members], tag=message.tag))
            results.append(result)
        works = dist.batch_isend_irecv(ops)
        for number, work, result in zip(numbers, works, results, strict=True):
            self._begun[number] = _Begun(work, result)


def values(seed: int, rank: int, length: int, dtype: str) -> torch.Tensor:
    """(length,) small whole numbers, so that every type adds them exactly; none negative if unsigned."""
    numbers = (torch.arange(length) * 5 + seed * 3 + rank * 2) % 7
    return (numbers if dtype == "uint8" else numbers - 3).to(getattr(torch, dtype))


def _collective(operation: Collective, rank: int, group: Any, *, blocking: bool) -> _Begun:
    call, result = _CALLS[operation.kind](operation, rank, group)
    return _Begun(call(group=group, async_op=not blocking), result)


_Call = tuple[Callable[..., Any], Callable[[], Any]]


def _own(operation: Collective, rank: int, num_parts: int = 1) -> torch.Tensor:
    return values(operation.seed, rank, operation.length * num_parts, operation.dtype)


def _room(operation: Collective, num_parts: int = 1) -> torch.Tensor:
    return torch.full((operation.length * num_parts,), _FILLER, dtype=getattr(torch, operation.dtype))


def _reduction(operation: Collective) -> Any:
    return getattr(dist.ReduceOp, operation.reduction)


def _all_reduce(operation: Collective, rank: int, _: Any) -> _Call:
    tensor = _own(operation, rank)
    return (lambda **how: dist.all_reduce(tensor, op=_reduction(operation), **how)), tensor.tolist


def _broadcast(operation: Collective, rank: int, _: Any) -> _Call:
    tensor = _own(operation, rank)
    return (lambda **how: dist.broadcast(tensor, operation.root, **how)), tensor.tolist


def _reduce(operation: Collective, rank: int, _: Any) -> _Call:
    tensor = _own(operation, rank)
    # What is left of the others' tensors is not defined.
    return (
        lambda **how: dist.reduce(tensor, operation.root, op=_reduction(operation), **how),
        lambda: tensor.tolist() if rank == operation.root else None,
    )


def _all_gather(operation: Collective, rank: int, _: Any) -> _Call:
    parts = [_room(operation) for _ in operation.members]
    return (
        lambda **how: dist.all_gather(parts, _own(operation, rank), **how),
        lambda: [part.tolist() for part in parts],
    )


def _all_gather_single(operation: Collective, rank: int, _: Any) -> _Call:
    whole, own = _room(operation, len(operation.members)), _own(operation, rank)
    return (lambda **how: dist.all_gather_single(whole, own, **how)), whole.tolist


def _reduce_scatter_single(operation: Collective, rank: int, _: Any) -> _Call:
    part, whole = _room(operation), _own(operation, rank, len(operation.members))
    return (
        lambda **how: dist.reduce_scatter_single(part, whole, op=_reduction(operation), **how),
        lambda: (part.tolist(), whole.tolist()),
    )


def _gather(operation: Collective, rank: int, _: Any) -> _Call:
    parts = [_room(operation) for _ in operation.members] if rank == operation.root else None
    return (
        lambda **how: dist.gather(_own(operation, rank), parts, operation.root, **how),
        lambda: None if parts is None else [part.tolist() for part in parts],
    )


def _scatter(operation: Collective, rank: int, _: Any) -> _Call:
    part = _room(operation)
    parts = [_own(operation, member) for member in operation.members] if rank == operation.root else None
    return (lambda **how: dist.scatter(part, parts, operation.root, **how)), part.tolist


def _all_to_all_single(operation: Collective, rank: int, _: Any) -> _Call:
    def count(source: int, destination: int) -> int:
        return 1 + (operation.seed + 3 * source + 5 * destination) % 3 * operation.length

    sent = [count(rank, member) for member in operation.members]
    received = [count(member, rank) for member in operation.members]
    whole = values(operation.seed, rank, sum(sent), operation.dtype)
    output = torch.full((sum(received),), _FILLER, dtype=whole.dtype)
    return (lambda **how: dist.all_to_all_single(output, whole, received, sent, **how)), output.tolist


def _barrier(_operation: Collective, _rank: int, _group: Any) -> _Call:
    return (dist.barrier), list


_CALLS: Final[Mapping[str, Callable[[Collective, int, Any], _Call]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "reduce_scatter_single": _reduce_scatter_single,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
}
