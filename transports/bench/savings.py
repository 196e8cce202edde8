"""What is spared hosts in an all-reduce, each by itself: schedules and buffers that are kept from one to the next, and
additions of vectors."""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from transports.channels.tcp import Tcp, summation
from transports.collectives.ring import Ring
from transports.group import Group

_ADDRESS: Final = "127.0.0.1"
_TIMEOUT_S: Final = 60.0
_NUM_WARMUP: Final = 20


class Compared(NamedTuple):
    """Medians, in seconds."""

    with_s: float
    without_s: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes without."""
        return self.without_s / self.with_s


def additions(num_bytes: int, *, num_samples: int) -> Compared:
    """Of an array of float32 to another, with vectors and without, in turn. Raises UnsupportedError where there is no C
    compiler."""
    values = np.random.default_rng(1).random((2, num_bytes // 4), np.float32)
    adders = [summation(vectors=vectors) for vectors in (True, False)]
    times_s: list[list[float]] = [[], []]
    for _ in range(_NUM_WARMUP + num_samples):
        for add, times in zip(adders, times_s, strict=True):
            times.append(_timed_s(partial(add, values[0], values[1])))
    return Compared(*(statistics.median(times[_NUM_WARMUP:]) for times in times_s))


def kept_programs(num_bytes: int, *, num_samples: int) -> Compared:
    """Of an all-reduce around a ring of two processes over loopback: what was worked out for the one before is kept,
    and forgotten, in turn. The slower rank's time."""
    with tempfile.TemporaryDirectory(prefix="transports-savings-") as folder:
        of_rank = partial(_rank_times_s, num_bytes, num_samples, str(Path(folder) / "store"))
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            ranks = list(pool.map(of_rank, range(2), timeout=2 * _TIMEOUT_S))
    kept_s, anew_s = ([max(pair) for pair in zip(*each, strict=True)] for each in zip(*ranks, strict=True))
    return Compared(statistics.median(kept_s), statistics.median(anew_s))


def _rank_times_s(num_bytes: int, num_samples: int, store_path: str, rank: int) -> tuple[list[float], list[float]]:
    import torch
    from torch._C._distributed_c10d import FileStore

    from transports.execution.operations import Transport

    torch.set_num_threads(1)
    store = FileStore(store_path, 2)
    group = Group(name="savings", rank=rank, size=2, address=_ADDRESS, store=store, timeout_s=_TIMEOUT_S)
    transport, values = Transport(Ring(), Tcp(), group), torch.ones(num_bytes // 4)
    times_s: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(_NUM_WARMUP + num_samples):
            for forgets, times in enumerate(times_s):
                transport.begin(time.monotonic() + _TIMEOUT_S)
                transport.all_reduce(torch.zeros(1))  # both begin together
                if forgets:
                    transport.forget()
                times.append(_timed_s(partial(transport.all_reduce, values)))
    finally:
        transport.close()
    return times_s[0][_NUM_WARMUP:], times_s[1][_NUM_WARMUP:]


def _timed_s(do: Callable[[], None]) -> float:
    begun_s = time.monotonic()
    do()
    return time.monotonic() - begun_s
