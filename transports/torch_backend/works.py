"""torch's works for operations of ours: what is waited for, in Python and in C++, and whose future completes.

torch can make a work in Python in three manners, of which one is sound. A subclass of `dist.Work` is found by C++ only
as long as its Python half lives, and DistributedDataParallel's join() keeps the other one alone. The work that
`_create_work_from_future` makes returns from wait() when the operation has failed, as if it had not. That of
`PythonCallbackWork` waits and fails in C++ by itself, and has a future that we complete.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import PythonCallbackWork
from torch.futures import Future

from transports.baselines.base import WorkLike
from transports.execution.communicator import Work
from transports.execution.tensors import writing_mode

_BUSY_POLL_S: Final = 1e-3
"""Who asks again so soon does nothing else."""
_GIVE_WAY_S: Final = 100e-6


class _End:
    """How an operation ends: what both halves of torch's work, the one in Python and the one in C++, wait for.

    It outlives whichever half goes first, and knows neither, so that no circle of references runs through C++.
    """

    __slots__ = ("_held", "_settler", "error", "over")

    lock = threading.Lock()
    """Of all of them, for a few lines at a time that make nothing and call nothing: neither a finalizer nor a signal's
    handler, which may wait for an operation, can come between."""

    @classmethod
    def renew(cls) -> None:
        """In a forked child, where whoever holds the lock is not."""
        cls.lock = threading.Lock()

    def __init__(self) -> None:
        self._held: threading.Lock | None = None
        self._settler = 0
        self.error: BaseException | None = None
        self.over = False

    def settle(self, work: PythonCallbackWork, value: Any) -> None:
        """Complete the future of `work`, with the error if there is one; its callbacks run here and now."""
        future = PythonCallbackWork.get_future(work)
        if future.done():  # a wait() in C++ that had a timeout has given up on it
            return
        if self.error is None:
            try:
                future.set_result(value)
            except RuntimeError:
                if not future.done():
                    raise
            return
        self._settler = threading.get_ident()
        with suppress(RuntimeError):  # which is in the future now
            PythonCallbackWork.wait(work)

    def wake(self) -> None:
        """Let everybody go who waits. Idempotent, from any thread."""
        if not self.over:
            self.over = True
            if self._held is not None:
                _release(self._held)

    def wait_briefly(self, at_most_s: float) -> None:
        """Let other threads have the interpreter for so long, or until the end if that is sooner."""
        self._come(timedelta(seconds=at_most_s))

    def wait_till_settled(self) -> None:
        """Until it is over, whatever came of it."""
        self._come(None)

    def wait(self, timeout: timedelta | None) -> None:
        """See :meth:`Operation.wait`."""
        if not self._come(timeout):
            raise dist.DistBackendError(_late(timeout))
        if self.error is not None:
            raise dist.DistBackendError(str(self.error)) from self.error

    def wait_in_cpp(self, timeout: timedelta) -> Any:
        """The same for torch's C++ side, which fails the future itself when it is late: then it has failed for all."""
        if self._settler == threading.get_ident():
            self._settler = 0
            return _raised_in_cpp(self.error)
        if not self._come(timeout):
            self.error = dist.DistBackendError(_late(timeout))
            return _raised_in_cpp(self.error)
        self.wait(None)
        return True

    def _come(self, timeout: timedelta | None) -> bool:
        if self.over:
            return True
        fresh = threading.Lock()
        fresh.acquire()
        with _End.lock:
            held = self._held = self._held or fresh
        if self.over:  # wake() may have looked for it just before it was there
            return True
        if not held.acquire(timeout=timeout.total_seconds() if timeout else -1):
            return False
        _release(held)
        return True


def _release(held: threading.Lock) -> None:
    """Leave a lock open that is opened once, and nobody closes for good."""
    with suppress(RuntimeError):  # two threads have found that it is over
        held.release()


os.register_at_fork(after_in_child=_End.renew)


def _late(timeout: timedelta | None) -> str:
    return f"the operation timed out: it is not done after {timeout}"


class _Message(type):
    """The class of a class that is printed as a message."""

    message = ""

    def __str__(cls) -> str:
        return cls.message


def _raised_in_cpp(error: BaseException | None) -> object:
    """What, returned to C++ where a truth value is expected, becomes an error of C++ there that says `error`.

    An exception of Python's would not do: torch keeps what was thrown in the work's future, to be thrown again by
    everybody who looks, and pybind11 ends the process when one of Python's is thrown a second time. pybind11's own
    error, the only other one that a callback can bring about, begins `Unable to cast Python instance of type`, goes on
    with how the type is printed, and ends where C++ sees the end of a string: at the zero byte.
    """
    text = f"{type(error).__name__}: {error}".replace("\0", " ").encode(errors="backslashreplace").decode()
    failed = _Message("Failed", (), {})
    failed.message = f"'none', for the operation failed.\n{text}\0"
    return failed()


class Operation(PythonCallbackWork):
    """torch's work for several of ours. Its future completes with `value`, after `finish` has run."""

    def __init__(
        self,
        works: Sequence[WorkLike],
        value: Any,
        finish: Callable[[], None] | None = None,
        *,
        is_waited_for: bool = False,
    ) -> None:
        """`is_waited_for`: whoever started it will call :meth:`wait` at once."""
        self._end: Final = _End()
        super().__init__(self._end.wait_in_cpp)
        self._works = works
        self._value = value
        self._finish = finish
        self._mode: Final = writing_mode()
        self._num_missing = len(works)
        self._future_is_out = False
        self._settling = 0
        """The thread that completes the future."""
        self._polled_s = 0.0
        if not works:
            self._all_ended()
        for work in works:
            work.add_end_callback(self._one_ended)
        if not is_waited_for:
            self._leave()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the operation is done, and its future with it; the future's callbacks may not have run. Raises
        DistBackendError, from the transport's own error, when it failed, and when it is not done after the timeout
        (zero, which is what C++ passes, means none)."""
        if not self._end.over:
            for work in self._works:
                work.proceed(waiting=not timeout)
        self._end.wait(timeout)
        return True

    def result(self) -> Any:
        """What the operation has changed, once it is done. Raises what :meth:`wait` raises."""
        self.wait()
        return self._value

    def is_completed(self) -> bool:
        """Whether it has ended, well or not. Whoever does nothing but ask gives way to the threads that do the work:
        the interpreter would let them have a turn every 5 ms only."""
        if not self._end.over:
            self._leave()
            now_s = time.monotonic()
            if now_s - self._polled_s < _BUSY_POLL_S:
                self._end.wait_briefly(_GIVE_WAY_S)
            self._polled_s = now_s
        return self._end.over

    def get_future(self) -> "Future[Any]":
        """Completes when the operation does. Its callbacks may wait for other operations."""
        future, end = super().get_future(), self._end
        if end.over:
            return future
        self._leave()
        self._future_is_out = True
        settling = self._settling
        if not settling and not future.done():
            # Before any other callback: whoever waits must not wait for what those do.
            future.add_done_callback(lambda _: end.wake())
        if settling not in (0, threading.get_ident()):  # a callback that were added now might run on that thread
            end.wait_till_settled()
        return future

    def _leave(self) -> None:
        """Nobody waits for it at once: it is to be carried out all the same."""
        for work in self._works:
            work.proceed(waiting=False)

    def _one_ended(self, error: BaseException | None) -> None:
        end = self._end
        if len(self._works) == 1:
            end.error = end.error or error
        else:  # they may end on several threads
            with _End.lock:
                end.error = end.error or error
                self._num_missing -= 1
                if self._num_missing > 0:
                    return
        self._all_ended()

    def _all_ended(self) -> None:
        """On the thread that ended the last, which nobody's callback may hold up."""
        end = self._end
        if end.error is None and self._finish is not None:
            try:
                with self._mode():
                    self._finish()
            except BaseException as error:  # noqa: BLE001 - not handed on it would leave the waiting side waiting
                end.error = error
        # In this order, as get_future() looks at them in the other: where both come at once, that one waits.
        self._settling = threading.get_ident()
        if not self._future_is_out:  # nobody can have added a callback that waits
            self._settle()
            return
        self._works[-1].add_done_callback(lambda _: self._settle())

    def _settle(self) -> None:
        self._end.settle(self, self._value)
        self._end.wake()


class Receipt(Operation):
    """That of a receive."""

    def __init__(self, work: Work, value: Any) -> None:
        self._work = work
        super().__init__([work], value)

    def source_rank(self) -> int:
        """The rank that sent, once it is known."""
        return self._work.source

    _source_rank = source_rank
