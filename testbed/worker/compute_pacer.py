"""Makes computing take longer without computing more: real work first, then waiting."""

import time


class ComputePacer:
    """Stretches a worker's computing; between the stretches lies what must not be stretched, communication.

    Computing is measured on the clock, so that what other processes take from it is stretched as well. Waiting is
    sleeping: the core is free for others, and for this worker's own communication.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        """How many times as long it takes; set at the start of each iteration."""
        self._begun_s = 0.0

    def begin(self) -> None:
        """Computing begins."""
        self._begun_s = time.monotonic()

    def stretch(self) -> None:
        """Return when the computing since `begin`, or since the last stretch, has taken `factor` times as long."""
        if self.factor > 1:
            time.sleep((self.factor - 1) * (time.monotonic() - self._begun_s))
        self._begun_s = time.monotonic()
