"""How long uses of aggregator slots take: from a chunk's first sending until its sum is there, on a worker.

Counted in buckets, four to each doubling (1, 1.25, 1.5 and 1.75 times a power of two, as HdrHistogram's), so that a
chunk costs one addition and quantiles are known to a quarter at most. Times are the protocol's (switch_agg.clock).
native/worker.c counts in the same buckets.
"""

import math
from collections.abc import Sequence
from typing import Final

STEPS: Final = 4
"""Buckets of each doubling."""
LEAST_EXPONENT: Final = -20
"""The first bucket begins at two to this power, a microsecond; what is shorter is in it."""
NUM_BUCKETS: Final = 96
"""The last one ends at 16 s; what is longer is in it."""


def bucket(latency_s: float) -> int:
    """In which it is counted."""
    if latency_s <= 0:
        return 0
    mantissa, exponent = math.frexp(latency_s)
    found = (exponent - 1 - LEAST_EXPONENT) * STEPS + int((2 * mantissa - 1) * STEPS)
    return min(max(found, 0), NUM_BUCKETS - 1)


def begin_s(number: int) -> float:
    """Where a bucket begins; of NUM_BUCKETS, where the last one ends."""
    return math.ldexp(1 + number % STEPS / STEPS, number // STEPS + LEAST_EXPONENT)


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """At most so long took this share of them: the end of a bucket; None where there are none."""
    total, reached = sum(counts), 0
    for number, count in enumerate(counts):
        reached += count
        if count and reached >= share * total:
            return begin_s(number + 1)
    return None
