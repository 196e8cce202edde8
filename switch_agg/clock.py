"""The clock of protocols: moments and durations that a core or an endpoint is given, and deadlines that it gives.

It is the machine's monotonic clock, or one that runs k times slower where time is dilated (docs/dilation.md): then one
second of every timer, round trip, pace and constant of a protocol is k seconds of the machine's, and nothing in it need
know. Whoever waits in the machine, for a socket or asleep, asks :func:`machine_s` how long that is.
"""

import time

_dilation = 1.0


def dilate(factor: float) -> None:
    """Let this process's protocols run so many times slower; before any of them has begun."""
    global _dilation  # noqa: PLW0603 - one clock for a whole process, as the machine's is
    _dilation = factor


def dilation() -> float:
    """Seconds of the machine in one of a protocol's."""
    return _dilation


def now_s() -> float:
    """This moment."""
    return time.monotonic() / _dilation


def machine_s(duration_s: float) -> float:
    """How long a protocol's duration lasts on the machine."""
    return duration_s * _dilation


def protocol_s(machine_s: float) -> float:
    """The inverse; and of a moment on `time.monotonic()` the same moment here."""
    return machine_s / _dilation
