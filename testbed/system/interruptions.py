"""Signals that end a command, held back while it does what must not be left half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

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
