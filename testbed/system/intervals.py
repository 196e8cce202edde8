"""Sets of times as disjoint intervals in order, and what cumulative counters did in them. Pure."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def union(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The union of intervals as disjoint intervals in order."""
    order = np.argsort(starts)
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), dtype=bool)
    opens[1:] = starts[1:] > reach[:-1]
    closes = np.append(opens[1:], True)[: len(starts)]
    return starts[opens], reach[closes]


def bytes_while_busy(at_s: Floats, counter: Floats, busy: tuple[Floats, Floats]) -> float:
    """Bytes of a cumulative counter that passed during the busy times (disjoint, in order).

    Between two samples the counter is taken to have moved evenly over the busy part of the interval and not
    at all in the rest: only buckets in service put bytes on these links. Interpolating over the whole
    interval would smear 10 Hz samples across gaps shorter than 100 ms and hide exactly the difference this
    number is for.
    """
    return float(np.sum(np.diff(counter)[busy_between(at_s, busy) > 0]))


def busy_between(at_s: Floats, busy: tuple[Floats, Floats]) -> Floats:
    """Busy seconds (disjoint times, in order) between each two moments."""
    starts, ends = busy
    if len(starts) == 0:
        return np.zeros(max(0, len(at_s) - 1))
    knots = np.column_stack([starts, ends]).ravel()
    busy_until = np.repeat(np.cumsum(ends - starts), 2)
    busy_until[0::2] -= ends - starts
    return np.diff(np.interp(at_s, knots, busy_until))


def even_bytes_between(at_s: Floats, counter: Floats, busy: tuple[Floats, Floats]) -> float:
    """Bytes of a cumulative counter that passed during these times, taken to have moved evenly between samples."""
    starts, ends = busy
    return float(np.sum(np.interp(ends, at_s, counter) - np.interp(starts, at_s, counter)))
