"""Gradients go to communication when they are due: those of a device's schedule from a thread that waits for it, while
whoever makes and fills them goes on."""

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from testbed.worker.compute_pacer import ComputePacer

_Call = Callable[[], None]
_Filled = tuple[Sequence[torch.Tensor], _Call, Callable[[Exception], None]]
"""What is handed over, what does so, and what hears of an error."""


class HandOver:
    """Hands gradients over when the pacer says that they are due, in the order in which it gets them.

    Where moments are due by a schedule, on a thread of its own, so that filling one bucket takes none of the next one's
    time. The thread moves gradients, and begins with this object, before such threads are given their priority. Else at
    once, on the caller's, whose computing is stretched.
    """

    def __init__(self, pacer: ComputePacer) -> None:
        self._pacer = pacer
        self._filled: queue.Queue[_Filled] | None = None
        if pacer.has_schedule:
            self._filled = queue.Queue()
            threading.Thread(target=self._run, args=(self._filled,), name="hand-over", daemon=True).start()

    def call_when_due(self, parameters: Sequence[torch.Tensor], call: _Call) -> None:
        """Call, once backward is due to have made the gradients of these parameters; what it raises is its own
        matter."""
        if self._filled is not None:
            self._filled.put((parameters, call, _ignore))
        else:
            self._pacer.hand_over(parameters)
            call()

    def started_when_due(
        self, parameters: Sequence[torch.Tensor], start: Callable[[], torch.futures.Future[Any]]
    ) -> torch.futures.Future[torch.Tensor]:
        """Starts, once backward is due to have made the gradients of these parameters; completes, and fails, as what
        it has started."""
        if self._filled is None:
            self._pacer.hand_over(parameters)
            return start()
        ended: torch.futures.Future[_Ended] = torch.futures.Future()
        self._filled.put((parameters, partial(_start, start, ended), partial(_fail, ended)))
        # In a callback of a future, since autograd sees no other errors.
        return ended.then(_value)

    def wait(self) -> None:
        """Return when all is handed over."""
        if self._filled is not None:
            self._filled.join()

    def _run(self, filled: "queue.Queue[_Filled]") -> None:
        while True:
            parameters, call, fail = filled.get()
            try:
                self._pacer.hand_over(parameters)
                call()
            except Exception as error:  # noqa: BLE001 (others are handed over all the same)
                fail(error)
            finally:
                filled.task_done()


class _Ended(NamedTuple):
    future: torch.futures.Future[Any] | None
    error: Exception | None

    def value(self) -> torch.Tensor:
        """Raises what went wrong."""
        if self.error is not None:
            raise self.error
        assert self.future is not None, "one or the other"
        value: torch.Tensor = self.future.value()
        return value


def _start(start: Callable[[], torch.futures.Future[Any]], ended: torch.futures.Future[_Ended]) -> None:
    start().add_done_callback(partial(_pass_on, ended))


def _fail(ended: torch.futures.Future[_Ended], error: Exception) -> None:
    """To be raised where the bucket is waited for."""
    ended.set_result(_Ended(None, error))


def _ignore(_: Exception) -> None:
    """Whoever is called says it to those who wait."""


def _pass_on(ended: torch.futures.Future[_Ended], future: torch.futures.Future[Any]) -> None:
    ended.set_result(_Ended(future, None))


def _value(future: torch.futures.Future[_Ended]) -> torch.Tensor:
    return future.value().value()
