"""A delay-based window that does not starve beside senders that fill the queue. Pure."""

from typing import Final

from switch_agg.window import DelayWindow

PATIENCE: Final = 8
"""Decreases in a row, one a round trip, after which somebody else is taken to hold the queue."""
NUM_EMPTY: Final = 4
"""Round trips in a row, each wholly at the target, after which nobody is: beside a sender that halves, queues are empty
for a moment, too."""


class CompetingDelayWindow(DelayWindow):
    """Keeps the queueing delay near its target while that is in its power; otherwise it adds and halves as TCP does.

    Whoever makes room for a queue that somebody else fills ends with nothing. Copa (Arun and Balakrishnan, NSDI 2018,
    section 2.2) therefore changes its mode when the queue has not been nearly empty for some round trips; so does
    this: after PATIENCE decreases without one round trip at the target it takes them back and competes, until none has
    been above the target for NUM_EMPTY of them.
    """

    def __init__(self, initial: float, maximum: int, *, target_s: float = 1e-3) -> None:
        super().__init__(initial, maximum, target_s=target_s)
        self.competes = False
        self._num_decreases = 0
        self._before = float(initial)
        self._above_s = 0.0

    def on_result(self, round_trip_s: float | None, *, marked: bool, now_s: float) -> None:
        """As the mode says."""
        if round_trip_s is None:
            return
        if self._base_s is None or round_trip_s > self._base_s + self._target_s:
            self._above_s = now_s
        elif not self.competes or now_s - self._above_s >= NUM_EMPTY * round_trip_s:
            self.competes, self._num_decreases = False, 0
        if not self.competes:
            super().on_result(round_trip_s, marked=marked, now_s=now_s)
            return
        self._base_s = min(self._base_s or round_trip_s, round_trip_s)
        self._round_trip_s = round_trip_s
        if marked:
            self._decrease(0.5, now_s)
        else:
            self._increase(1.0)

    def _decrease(self, factor: float, now_s: float) -> None:
        before, decreased_s = self._window, self._decreased_s
        super()._decrease(factor, now_s)
        if self.competes or self._decreased_s == decreased_s:
            return
        if self._num_decreases == 0:
            self._before = before
        self._num_decreases += 1
        if self._num_decreases == PATIENCE:
            self.competes, self._window = True, self._before
