"""Threads on which operations call back. A callback may wait for operations whose own callbacks must run meanwhile, so
one thread is not enough.

`concurrent.futures` would do, for three times as many objects and seven times as many locks: nobody asks what has
become of a callback, so nothing has to be kept of it.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final
from weakref import WeakSet

_log: Final = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], None]
_Call = tuple[Callback, BaseException | None]


class CallbackThreads:
    """As many threads as there are callbacks at a time, up to a number; those that have nothing to do are kept."""

    def __init__(self, max_threads: int, name: str) -> None:
        """`name` is that of the threads."""
        self._max_threads = max_threads
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One for each thread that nothing has been given to."""
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # a signal's handler may end an operation, too
        self._closed = False
        _OPEN.add(self)

    def submit(self, callback: Callback, error: BaseException | None) -> None:
        """Call it with the error on one of the threads. Raises RuntimeError after :meth:`shutdown`."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: no threads for it any more")
            self._calls.put((callback, error))
            if self._idle:
                self._idle.pop()
            elif len(self._threads) < self._max_threads:
                # A daemon, or the interpreter would wait for a thread that waits for the interpreter's end.
                thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def shutdown(self, *, wait: bool = False) -> None:
        """Take no more callbacks; those that have been submitted are called. Idempotent. `wait` until they have
        returned."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            callback, error = call
            try:
                callback(error)
            except BaseException:  # noqa: BLE001 - the thread is there for other callbacks, whatever this one raises
                _log.exception("%s: a callback failed", self._name)
            del call, callback, error  # what they know can be let go while there is nothing to do
            self._idle.append(None)
        self._calls.put(None)  # for the next thread


_OPEN: Final[WeakSet[CallbackThreads]] = WeakSet()


def finish_callbacks() -> None:
    """At the end of a process: return when all that were submitted have been called."""
    for threads in list(_OPEN):
        threads.shutdown(wait=True)


os.register_at_fork(after_in_child=_OPEN.clear)
