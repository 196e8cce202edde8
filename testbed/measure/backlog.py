"""Does a link send at its rate while packets wait? Mininet-HiFi's invariant, from two readings of the same counter.

N. Handigol, B. Heller, V. Jeyakumar, B. Lantz, N. McKeown, Reproducible network experiments using container-based
emulation, CoNEXT 2012: an emulated link is true if it dequeues at its rate whenever it has something to dequeue. A
queue that holds B bytes cannot run empty within B x 8 / rate, whatever arrives, so a second reading within that time
tells exactly how much should have gone: no gap in the traffic can be taken for a fault of the link.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MARGIN: Final = 0.8
"""Of the time for which the queue surely holds something: reading takes time too."""
NUM_GRANULES: Final = 2
"""A class sends whole (super-)packets: of fewer a reading says nothing."""
MIN_GAP_S: Final = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A class at one moment."""

    at_s: float
    rate_bps: float
    """As the kernel says, so it follows changes."""
    class_bytes: int
    backlog_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogProbe:
    """What a direction sent while its queue surely held packets."""

    at_s: float
    """time.monotonic() of the first reading."""
    link: str
    node: str
    """The sending node."""
    elapsed_s: float
    backlog_bytes: int
    """At the first reading."""
    sent_bytes: int
    due_bytes: float
    """rate x time."""


def gap_s(reading: Reading, *, granule_bytes: int, limit_s: float) -> float | None:
    """How long after this reading the next one must come; None if the queue holds too little to tell anything."""
    certain_s = min(MARGIN * reading.backlog_bytes * 8 / reading.rate_bps, limit_s)
    least_s = max(MIN_GAP_S, NUM_GRANULES * granule_bytes * 8 / reading.rate_bps)
    return certain_s if certain_s >= least_s else None


def compare(link: str, node: str, before: Reading, after: Reading) -> BacklogProbe | None:
    """None if the queue may have run empty in between, or the rate was changed."""
    elapsed_s = after.at_s - before.at_s
    if before.rate_bps != after.rate_bps or elapsed_s >= before.backlog_bytes * 8 / before.rate_bps:
        return None
    return BacklogProbe(
        at_s=before.at_s,
        link=link,
        node=node,
        elapsed_s=elapsed_s,
        backlog_bytes=before.backlog_bytes,
        sent_bytes=after.class_bytes - before.class_bytes,
        due_bytes=before.rate_bps * elapsed_s / 8,
    )


class BacklogProber:
    """Takes one probe at a time, of the backlogged direction that was probed longest ago."""

    def __init__(self, *, granule_bytes: int, limit_s: float) -> None:
        """`granule_bytes`: the largest packet that a queue gets. A probe takes at most `limit_s`."""
        self._granule_bytes = granule_bytes
        self._limit_s = limit_s
        self._probed_s: dict[tuple[str, str], float] = {}

    def probe(
        self,
        candidates: Sequence[tuple[str, str]],
        read: Callable[[tuple[str, str]], Reading],
        sleep: Callable[[float], object] = time.sleep,
    ) -> BacklogProbe | None:
        """One of the candidates (link and sending node); None if none of them surely has a backlog now."""
        for key in sorted(candidates, key=lambda key: self._probed_s.get(key, 0.0)):
            before = read(key)
            wait_s = gap_s(before, granule_bytes=self._granule_bytes, limit_s=self._limit_s)
            self._probed_s[key] = before.at_s
            if wait_s is not None:
                sleep(wait_s)
                return compare(*key, before, read(key))
        return None
