"""Signals that end a command: what they do to a run, and how they are held back while something must not be left half
done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from testbed.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those by which a user, a batch system or a terminal that goes away ends a command."""


@contextmanager
def held_back() -> Iterator[None]:
    """A handler in Python of one of SIGNALS that arrives in the block runs at its end instead, for the first of them.

    Such handlers run on the main thread alone, between any two of its instructions; elsewhere this does nothing. A
    signal without a handler in Python does what it always does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    handlers = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            handlers[signal.Signals(arrived[0])](arrived[0], None)


def interrupt(signum: int, _frame: FrameType | None) -> NoReturn:
    """A handler: raises Interrupted with the signal's name."""
    # A second signal must not interrupt the cleaning that the first one started.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted(signal.Signals(signum).name)


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block, signals that nobody has a handler of their own for raise Interrupted, so that what was made is
    undone. At its end they mean what they meant before, and the one that arrived is delivered: SIGINT is a
    KeyboardInterrupt, SIGTERM ends the process.

    On the main thread alone; elsewhere nobody can have handlers, and this does nothing. A handler of the caller's own
    (an event loop's, say) stays, and so does a signal that is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False
    arrived: list[int] = []

    def unwind(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if not over:
            interrupt(number, frame)

    # A handler that is none of Python's, which is None here, cannot be put back.
    handlers = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not None}
    try:
        try:
            for number, handler in handlers.items():
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, unwind)
            yield
        finally:
            over = True  # what arrives while handlers are put back is not to stop that
    except Interrupted:
        if not arrived:  # it is another's, who knows what to do with it
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
