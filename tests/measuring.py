"""Measurements on a machine that does other things as well, by the rule that calibration has for them."""

import time
from collections.abc import Callable

from testbed.calibration.attempts import Attempts, StealMeter


def standing(measure: Callable[[], float], holds: Callable[[float], bool]) -> float:
    """The first measurement where it holds, else it is repeated and the median of the last five stands, never the
    closest: see :mod:`testbed.calibration.attempts`."""
    attempts = Attempts[float](holds, float)
    while not attempts.settled:
        if attempts.measured:
            time.sleep(attempts.pause_s)
        steal = StealMeter()
        attempts.add(measure(), steal_share=steal.share)
    return attempts.value
