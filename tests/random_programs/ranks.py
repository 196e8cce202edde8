"""Forked ranks that run one random program after another on gloo and on testbed, and are forked anew after a failure.

A program takes some ten milliseconds, a fork, a connection of every pair in every group, and torch's imports a hundred
times that: so the ranks of a world and all its groups are kept.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, Self

from tests.random_programs.programs import Message, Program, groups_of
from tests.ranks import ADDRESS, fork_server

Backend = Literal["gloo", "testbed"]
GROUP_TIMEOUT_S: Final = 10.0
"""After which an operation that hangs becomes an error, if it can."""
DEADLINE_S: Final = 30.0
"""After which the ranks are killed. Ten times what a program takes on a machine that does ten things beside."""


class ProgramError(AssertionError):
    """A program hung, or raised an error, on one of the backends."""


@dataclass(slots=True)
class _World:
    """The ranks of one size of world."""

    folder: "tempfile.TemporaryDirectory[str]"
    processes: list[Any]
    pipes: list[Connection]


@dataclass(slots=True)
class Worlds:
    """A context manager; worlds are made when a program needs them."""

    _worlds: dict[int, _World] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for size in list(self._worlds):
            self._end(size)

    def run(self, program: Program, backend: Backend) -> list[Any]:
        """What each rank has at the end, in a form that may be compared. Raises ProgramError."""
        size = program.world_size
        if size not in self._worlds:
            self._worlds[size] = _start(size)
        world = self._worlds[size]
        for pipe in world.pipes:
            pipe.send((program, backend))
        deadline_s = time.monotonic() + DEADLINE_S
        answers = [_answer(pipe, deadline_s) for pipe in world.pipes]
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error]
        if errors:
            self._end(size)
            raise ProgramError(f"on {backend}:\n" + "\n".join(errors))
        return [comparable(program, rank, results) for rank, (results, _) in enumerate(answers)]

    def _end(self, size: int) -> None:
        world = self._worlds.pop(size)
        for process in world.processes:
            process.kill()
        for process, pipe in zip(world.processes, world.pipes, strict=True):
            process.join()
            pipe.close()
        world.folder.cleanup()


def comparable(program: Program, rank: int, results: Sequence[tuple[int, Any]]) -> Any:
    """Receives from any source with one tag got, between them, the messages with that tag."""
    named, gathered = [], []
    for number, result in results:
        operation = program.operations[number]
        if isinstance(operation, Message) and operation.any_source and rank == operation.destination:
            gathered.append((operation.tag, result))
        else:
            named.append((number, result))
    return named, sorted(gathered)


def _start(size: int) -> _World:
    context = fork_server()
    folder = tempfile.TemporaryDirectory()
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_live, args=(rank, size, folder.name, theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    return _World(folder, processes, pipes)


def _answer(pipe: Connection, deadline_s: float) -> tuple[Any, str]:
    if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
        return None, "hangs"
    try:
        results, error = pipe.recv()
    except EOFError:
        return None, "its process has ended"
    return results, error


def _live(rank: int, size: int, folder: str, pipe: Connection) -> None:
    """A rank's process, until it is killed or its pipe is closed."""
    import torch

    from tests.random_programs.interpreter import run

    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TESTBED_ADDRESS": ADDRESS}
    groups = _groups(rank, size, folder)
    while True:
        try:
            program, backend = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((run(program, rank, groups[backend]), ""))
        except Exception:  # noqa: BLE001 - the test prints it beside the program
            pipe.send((None, traceback.format_exc()))


def _groups(rank: int, size: int, folder: str) -> dict[Backend, Any]:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    store = FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    return {
        backend: {
            members: dist.new_group(list(members), timeout=timeout, backend=backend) for members in groups_of(size)
        }
        for backend in ("gloo", "testbed")
    }
