"""Barrier and broadcast among p4app-switchML's clients, after its controller (grpc_server.py), for one event loop.

Two things differ, because the original hangs, or lets go too early, without them: whoever goes away while it waits is
forgotten, and whoever says what cannot be is refused.
"""

import asyncio
from dataclasses import dataclass, field

from switch_agg.errors import JobError, SessionEndedError
from switch_agg.switchml.program import MAX_WORKERS


class Barrier:
    """Lets calls go once `num_workers` of them wait."""

    def __init__(self) -> None:
        self._num_workers = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def num_waiting(self) -> int:
        """Calls."""
        return len(self._waiting)

    async def wait(self, num_workers: int) -> None:
        """Raises JobError for a number that the others did not say, SessionEndedError when they are sent away."""
        check_num_workers(num_workers)
        if self._waiting and num_workers != self._num_workers:
            raise JobError(f"num_workers: those who wait at this barrier said {self._num_workers}, not {num_workers}")
        if len(self._waiting) + 1 == num_workers:
            self._let_go(None)
            return
        self._num_workers = num_workers
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:  # its client has gone away
                self._waiting.remove(future)

    def send_away(self, reason: str) -> None:
        """Let everybody who waits fail."""
        self._let_go(SessionEndedError(reason))

    def _let_go(self, error: SessionEndedError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


@dataclass(slots=True, eq=False)
class _Operation:
    """One value, from the root to every rank."""

    value: int
    caller: str
    """The root's connection."""
    num_workers: int
    root: int
    taken: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Waiting:
    num_workers: int
    root: int
    operation: "asyncio.Future[_Operation]"


class Broadcast:
    """Gives each rank the root's value. A rank that has it waits for the next one, and a new one replaces the last."""

    def __init__(self) -> None:
        self._current: _Operation | None = None
        self._waiting: dict[int, _Waiting] = {}

    @property
    def num_waiting(self) -> int:
        """Calls."""
        return len(self._waiting)

    async def exchange(self, caller: str, *, rank: int, root: int, num_workers: int, value: int) -> int:
        """The root's value; `caller` is the connection. Raises JobError for what does not fit to the others, and
        SessionEndedError when they are sent away."""
        check_num_workers(num_workers)
        for name, number in (("rank", rank), ("root", root)):
            if number >= num_workers:
                raise JobError(f"{name}: 0 to {num_workers - 1}, of {num_workers} workers (got {number})")
        if rank == root:
            operation = _Operation(value, caller, num_workers, root)
            self._begin(operation)
        elif self._current is not None and rank not in self._current.taken:
            operation = self._current
            _check_same(rank, num_workers, root, operation)
        else:
            operation = await self._next(rank, caller, num_workers, root)
        operation.taken.add(rank)
        if len(operation.taken) == num_workers and self._current is operation:
            self._current = None
        return operation.value

    def forget(self, caller: str) -> None:
        """A connection has gone away while it waited: nobody is to get what it gave."""
        if self._current is not None and self._current.caller == caller:
            self._current = None

    def send_away(self, reason: str) -> None:
        """Let everybody who waits fail."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.operation.done():
                each.operation.set_exception(SessionEndedError(reason))

    def _begin(self, operation: _Operation) -> None:
        self._current = operation
        waiting, self._waiting = self._waiting, {}
        for rank, each in waiting.items():
            if each.operation.done():
                continue
            try:
                _check_same(rank, each.num_workers, each.root, operation)
            except JobError as error:
                each.operation.set_exception(error)
            else:
                each.operation.set_result(operation)

    async def _next(self, rank: int, caller: str, num_workers: int, root: int) -> _Operation:
        other = self._waiting.get(rank)
        if other is not None and not other.operation.done():  # the later one stays: the other's machine may be gone
            said = f"rank: another client of rank {rank} has come, from {caller}; each client has a rank of its own"
            other.operation.set_exception(JobError(said))
        waiting = _Waiting(num_workers, root, asyncio.get_running_loop().create_future())
        self._waiting[rank] = waiting
        try:
            return await waiting.operation
        finally:
            if self._waiting.get(rank) is waiting:  # its client has gone away
                del self._waiting[rank]


def check_num_workers(num_workers: int) -> None:
    """Raises JobError."""
    if not 1 <= num_workers <= MAX_WORKERS:
        raise JobError(f"num_workers: 1 to {MAX_WORKERS} (got {num_workers})")


def _check_same(rank: int, num_workers: int, root: int, operation: _Operation) -> None:
    """Raises JobError."""
    for name, own, others in (
        ("num_workers", num_workers, operation.num_workers),
        ("root", root, operation.root),
    ):
        if own != others:
            raise JobError(f"{name}: rank {rank} says {own}, rank {operation.root} said {others}")
