"""Does a link send at its rate while packets wait? Mininet-HiFi's invariant, from readings of one counter.

N. Handigol, B. Heller, V. Jeyakumar, B. Lantz, N. McKeown, Reproducible network experiments using container-based
emulation, CoNEXT 2012: an emulated link is true if it dequeues at its rate whenever it has something to dequeue. A
queue that holds B bytes cannot run empty within B x 8 / rate, whatever arrives, so a chain of readings, each within
that time of the one before, tells exactly how much should have gone: no gap in the traffic is taken for a fault of the
link.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MARGIN: Final = 0.8
"""Of the time for which the queue surely holds something: reading takes time too."""
NUM_GRANULES: Final = 2
"""A class sends whole (super-)packets: of fewer a reading says nothing."""
GRANULE_MARGIN: Final = 1.1
"""The bytes of a largest packet on the wire, headers of each of its segments included, over those without."""
MIN_GAP_S: Final = 200e-6
"""A shorter one is over before this program has slept."""
START_STRIDE: Final = 0.7548776662466927
LENGTH_STRIDE: Final = 0.5698402909980532
"""Probes begin at, and last for, times that no rhythm of the link is in step with: the additive recurrence R2 (M.
Roberts, The unreasonable effectiveness of quasirandom sequences, 2018). Else each would err to the same side."""
MAX_READINGS: Final = 16
"""Of one probe: each takes about 0.1 ms of a core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A class at one moment."""

    at_s: float
    rate_bps: float
    """Requested at that moment, so it follows the run's own changes and nobody else's."""
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


def least_rate_bps(*, granule_bytes: int, limit_s: float) -> float:
    """Of a link that can be probed: on a slower one a probe of `limit_s` sees too few packets to say anything."""
    return 8 * NUM_GRANULES * granule_bytes / limit_s


def certain_s(reading: Reading) -> float:
    """For how many seconds after the reading the queue surely holds something."""
    return reading.backlog_bytes * 8 / reading.rate_bps


def follows(before: Reading, after: Reading) -> bool:
    """Whether the queue surely held something, and the rate was one, all the time in between."""
    return before.rate_bps == after.rate_bps and after.at_s - before.at_s < certain_s(before)


def probing_limit_s(interval_s: float) -> float:
    """For how long a probe watches at most, between two samples that are so far apart."""
    return interval_s / 2


class BacklogProber:
    """Takes one probe at a time, of the backlogged direction that was probed longest ago."""

    def __init__(self, *, granule_bytes: int, limit_s: float) -> None:
        """`granule_bytes`: the largest packet that a queue gets. A probe watches for `limit_s` at most."""
        self._granule_bytes = granule_bytes
        self._limit_s = limit_s
        self._probed_s: dict[tuple[str, str], float] = {}
        self._num_attempts: Counter[tuple[str, str]] = Counter()

    def probe(
        self,
        candidates: Sequence[tuple[str, str]],
        read: Callable[[tuple[str, str]], Reading],
        sleep: Callable[[float], object] = time.sleep,
    ) -> BacklogProbe | None:
        """One of the candidates (link and sending node); None if none of them surely has a backlog for long enough.

        Each attempt begins after a wait of its own. What a failed one waited for, a queue to run empty, is in step with
        the super-frames of the link before it: straight after it, all probes of that link began just before one left,
        and a link at its rate was seen at 112 % of it.
        """
        waited_s = 0.0
        for key in sorted(candidates, key=lambda key: self._probed_s.get(key, 0.0)):
            if waited_s > self._limit_s / 2:
                break
            self._num_attempts[key] += 1
            wait_s = self._limit_s / 2 * (self._num_attempts[key] * START_STRIDE % 1)
            sleep(wait_s)
            length_s = self._limit_s / 2 * (1 + self._num_attempts[key] * LENGTH_STRIDE % 1)
            first = read(key)
            self._probed_s[key] = first.at_s
            last = self._chain(key, first, first.at_s + length_s, read, sleep)
            due_bytes = first.rate_bps * (last.at_s - first.at_s) / 8
            if due_bytes >= NUM_GRANULES * self._granule_bytes:
                return BacklogProbe(
                    at_s=first.at_s,
                    link=key[0],
                    node=key[1],
                    elapsed_s=last.at_s - first.at_s,
                    backlog_bytes=first.backlog_bytes,
                    sent_bytes=last.class_bytes - first.class_bytes,
                    due_bytes=due_bytes,
                )
            waited_s += wait_s + last.at_s - first.at_s
        return None

    def _chain(
        self,
        key: tuple[str, str],
        first: Reading,
        until_s: float,
        read: Callable[[tuple[str, str]], Reading],
        sleep: Callable[[float], object],
    ) -> Reading:
        """The last reading until which the queue surely held something.

        One that is found empty, or with no more than an acknowledgement, ends a chain at a moment that is in step with
        the link: where one packet at a time waits, and not for long, chains begin before one leaves and end after one
        left, and a link at its rate was seen at 115 % of it. Then only what came before counts, as long as more than a
        packet waited; and all where more was sent than a link of that rate can. Otherwise a chain ends only where one
        could begin.
        """
        last = sure = first
        for _ in range(MAX_READINGS):
            wait_s = min(MARGIN * certain_s(last), until_s - last.at_s)
            if wait_s < MIN_GAP_S:
                break
            sleep(wait_s)
            following = read(key)
            if not follows(last, following):
                break
            last = following
            if last.backlog_bytes > GRANULE_MARGIN * self._granule_bytes:
                sure = last
        due_bytes = last.rate_bps * (last.at_s - first.at_s) / 8
        possible_bytes = due_bytes + GRANULE_MARGIN * self._granule_bytes
        could_go_on = MARGIN * certain_s(last) >= MIN_GAP_S
        too_fast = last.class_bytes - first.class_bytes > possible_bytes
        return last if could_go_on or too_fast else sure
