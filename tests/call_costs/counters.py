"""What is counted, each in a process of its own, since one count would disturb the other."""

import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from switch_agg.native.build import build

Counter = Callable[[], int]
SOURCE: Final = Path(__file__).with_name("allocations.c")


def _allocations() -> Counter:
    library = ctypes.PyDLL(str(build(SOURCE, "library")))
    library.allocations.restype = ctypes.c_uint64
    library.count_allocations()
    return lambda: int(library.allocations())


class _CountedLock:
    """A lock that counts how often it is taken."""

    taken = 0

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, *arguments: Any, **named: Any) -> bool:
        _CountedLock.taken += 1
        return bool(self._lock.acquire(*arguments, **named))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class _CountedQueue(queue.SimpleQueue[Any]):
    """A queue whose readers are counted as takers of a lock."""

    def get(self, *arguments: Any, **named: Any) -> Any:
        _CountedLock.taken += 1
        return super().get(*arguments, **named)


def _locks() -> Counter:
    """Those that are made by `threading`, and by what is made of its locks, from now on. Who waits for something to
    come through a `queue.SimpleQueue` takes its lock."""
    for name in ("Lock", "_allocate_lock", "RLock"):
        made: Callable[[], Any] = getattr(threading, name)
        setattr(threading, name, lambda made=made: _CountedLock(made()))
    queue.SimpleQueue = _CountedQueue
    return lambda: _CountedLock.taken


def _calls() -> Counter:
    """Functions of Python that are called, in whatever thread."""
    num_calls = 0

    def on_event(_: Any, event: str, __: Any) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    return lambda: num_calls


COUNTERS: Final[dict[str, Callable[[], Counter]]] = {"allocations": _allocations, "locks": _locks, "calls": _calls}
"""To be started before anything of `transports` is imported."""
