"""How long all-reduces take among workers that do the same at the same time, each on a link of its own: closed forms of
what the cost model (`transports/collectives/timing.py`) says where hosts cost nothing and windows are large. Pure.
"""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Final, Literal

from transports.collectives.halving_doubling import HalvingDoubling
from transports.collectives.network_info import NetworkInfo
from transports.collectives.ring import MIN_SEGMENTS, Ring
from transports.collectives.schedules.segments import MIN_SEGMENT_BYTES

_RING: Final = Ring()
_HALVING: Final = HalvingDoubling()
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
    other. Where N is no power of two, some give all that they have to others first, and get all back. A long round
    begins when the other worker has said that it is through with the round before, but for a message."""
    collective = _HALVING.with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=rate_bps))
    num_rounds = num_workers.bit_length() - 1
    shares = [2.0 ** -(number + 1) for number in range(num_rounds)]
    folds = num_workers != 1 << num_rounds
    parts_bytes = [size_bytes * share for share in (1.0, *shares, *shares[::-1])]  # before the first: what is folded
    announced_s = sum(
        max(0.0, latency_s - 8 * before_bytes / max(2, ceil(before_bytes / collective.segment_bytes)) / rate_bps)
        for number, (before_bytes, part_bytes) in enumerate(pairwise(parts_bytes))
        if collective.is_announced(number, num_rounds, folds=folds, num_bytes=part_bytes)
    )
    if folds:
        shares.append(1.0)
    return 2 * (8 * size_bytes * sum(shares) / rate_bps + len(shares) * latency_s) + announced_s


EVEN_EXCHANGES: Final[dict[BetweenWorkers, Callable[..., float]]] = {
    "ring": ring_s,
    "halving_doubling": halving_doubling_s,
}
"""By the name of the collective."""
