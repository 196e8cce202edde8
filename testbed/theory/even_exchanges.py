"""How long all-reduces take among workers that do the same at the same time, each on a link of its own: closed forms of
what the cost model (`transports/collectives/timing.py`) says where hosts cost nothing and windows are large. Pure.
"""

from collections.abc import Callable
from math import ceil
from typing import Final, Literal

from transports.collectives.ring import MIN_SEGMENTS, Ring
from transports.collectives.schedules.segments import MIN_SEGMENT_BYTES

_RING: Final = Ring()
BetweenWorkers = Literal["ring", "halving_doubling"]


def ring_s(num_workers: int, size_bytes: float, *, rate_bps: float, latency_s: float) -> float:
    """2 (N - 1) steps, each of a part for the next worker. A segment of it travels on as soon as it has come: long
    parts keep links busy all the while, and short ones take a segment's time and the delay in each step."""
    num_steps = 2 * (num_workers - 1)
    part_bytes = size_bytes / num_workers
    # As `segments` cuts, but not in whole elements: what is advised must not hang on whether their number is even.
    longest_bytes = min(_RING.segment_bytes, max(MIN_SEGMENT_BYTES, part_bytes / MIN_SEGMENTS))
    part_s = 8 * part_bytes / rate_bps
    segment_s = part_s / max(1, ceil(part_bytes / longest_bytes))
    return max(num_steps * part_s + latency_s, num_steps * (segment_s + latency_s) + part_s - segment_s)


def halving_doubling_s(num_workers: int, size_bytes: float, *, rate_bps: float, latency_s: float) -> float:
    """log2(N) rounds, in each of which half as much as before goes to another worker, and as many back, one after the
    other. Where N is no power of two, some give all that they have to others first, and get all back. What is said
    before long rounds costs nothing: it travels while the end of the round before does."""
    num_rounds = num_workers.bit_length() - 1
    shares = [2.0 ** -(number + 1) for number in range(num_rounds)]
    if num_workers != 1 << num_rounds:
        shares.append(1.0)
    return 2 * (8 * size_bytes * sum(shares) / rate_bps + len(shares) * latency_s)


EVEN_EXCHANGES: Final[dict[BetweenWorkers, Callable[..., float]]] = {
    "ring": ring_s,
    "halving_doubling": halving_doubling_s,
}
"""By the name of the collective."""
