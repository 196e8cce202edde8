"""Runs a function once per rank, each rank in a process of its own that is forked from one with torch
imported.

Importing torch takes 1.6 s and must happen once, but pytest's own process may already run threads, after
which a fork is no longer safe: so the ranks are children of a fork server of their own, which imports and
does nothing else.
"""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOAD = (
    "__main__",
    "pytest",  # by the files whose functions ranks call
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
    "transports.torch_backend.process_group",
    "testbed.worker.training",
    "testbed.worker.replay",
    "tests.first_plan",
    "tests.cheap_runs",
)
"""What each rank, and each sweep that is killed, would import anew; what is not there is left out."""
ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Rank:
    """What a rank's function receives."""

    rank: int
    size: int
    store_path: str


@dataclass(frozen=True)
class Outcome:
    """How a rank ended."""

    value: Any
    error: str
    """Its traceback, or empty."""
    exit_status: int | None
    """Negative: the signal that ended it."""


def join_group(rank: Rank, backend: str = "testbed", timeout_s: float = 30.0) -> None:
    """Make the default process group in a rank; each backend in turn, once the one before has been destroyed."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    os.environ["TESTBED_ADDRESS"] = ADDRESS
    store = FileStore(rank.store_path + backend, rank.size)
    dist.init_process_group(
        backend, store=store, rank=rank.rank, world_size=rank.size, timeout=timedelta(seconds=timeout_s)
    )


def fork_server() -> ForkServerContext:
    """That of this process, which has one: what it imports is what the first says who wants it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    return context


def run_ranks(
    function: Callable[..., Any], size: int, *arguments: Any, timeout_s: float = 60.0, check: bool = True
) -> Sequence[Outcome]:
    """Call `function(Rank, *arguments)` in `size` processes. With `check`, any error fails the test here."""
    context = fork_server()
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            own = Rank(rank, size, str(Path(directory) / "store"))
            where = Path(directory) / f"stacks{rank}"
            process = context.Process(target=_life, args=(function, own, arguments, theirs, where), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        deadline_s = time.monotonic() + timeout_s
        outcomes = []
        for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
            value, error = _read(pipe, deadline_s)
            process.join(max(0.0, deadline_s - time.monotonic()))
            status = process.exitcode
            if status is None:
                error += _stacks(process, Path(directory) / f"stacks{rank}")
                process.kill()
                process.join()
            outcomes.append(Outcome(value, error, status))
    if check:
        for rank, outcome in enumerate(outcomes):
            assert not outcome.error, f"rank {rank}:\n{outcome.error}"
            assert outcome.exit_status == 0, f"rank {rank} ended with {outcome.exit_status}"
    return outcomes


def _read(pipe: Connection, deadline_s: float) -> tuple[Any, str]:
    if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
        return None, "said nothing until the deadline"
    try:
        value, error = pipe.recv()
    except EOFError:
        return None, "ended without a word"
    return value, error


def _stacks(process: BaseProcess, path: Path) -> str:
    """Where each thread of a process that is not heard of is: a hang that leaves no trace is not found again."""
    assert process.pid is not None
    if not path.exists():
        return "; it did not begin"
    os.kill(process.pid, signal.SIGUSR1)
    process.join(2.0)
    return f"; it was at\n{path.read_text()}"


def _life(function: Callable[..., Any], own: Rank, arguments: tuple[Any, ...], pipe: Connection, stacks: Path) -> None:
    file = stacks.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        value = function(own, *arguments)
    except Exception:  # noqa: BLE001 - the test decides what an error means
        pipe.send((None, traceback.format_exc()))
    else:
        pipe.send((value, ""))
