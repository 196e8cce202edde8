"""Signals that end an aggregator: noted whenever they come, acted on only where nothing is half made."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from switch_agg.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those by which a user, a service manager or a terminal that goes away ends a command."""


class Ending:
    """Notes the first of SIGNALS that comes, from now until the process ends. For the main thread.

    The handler raises nothing: an exception between the call that puts a program on a switch and the line that says who
    removes it would leave it there. It takes no lock either (threading.Event has one), which whom it interrupts may
    hold. SIGHUP stays ignored where it is, by nohup(1).
    """

    def __init__(self) -> None:
        self.arrived: signal.Signals | None = None
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.arrived = self.arrived or signal.Signals(number)

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Raises Interrupted with the signal's name at the end of the block when one has come by then, also in place of
        an error: Ctrl-C ends a compiler that the block waits for, too."""
        try:
            yield
        finally:
            if self.arrived is not None:
                raise Interrupted(self.arrived.name)
