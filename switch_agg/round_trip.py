"""What a worker knows of round trips: RFC 6298's timer with this protocol's bounds, and how far packets are reordered.
Pure."""

import math
from typing import Final

MIN_TIMEOUT_S: Final = 5e-3
"""Below, a machine with few cores mistakes its own scheduling for loss."""
MAX_TIMEOUT_S: Final = 1.0
INITIAL_TIMEOUT_S: Final = 0.1
"""Before the first sample; RFC 6298's full second is for the internet."""
GRANULARITY_S: Final = 1e-3
MIN_PATIENCE: Final = 1.25
"""Round trips before a chunk that three later ones overtook is taken for lost: RFC 8985's quarter for reordering."""
MAX_PATIENCE: Final = 8.0
PATIENCE_STEP: Final = 0.5
PATIENCE_DECAY: Final = 1 / 16


class RoundTripEstimator:
    """Smoothed round trip and its variation, and the patience with chunks that others overtook.

    Where the machine itself delays and reorders packets (two cores that share many namespaces do, by milliseconds), a
    chunk is often late rather than lost. What shows it: its result comes sooner after the repetition than any round
    trip took. Then the whole time since it was first sent is a sample of the round trip, which Karn's algorithm alone
    would never see (as the Eifel algorithm does with timestamps, RFC 3522), and patience grows, at most once a round
    trip; repetitions that were needed let it sink again (RACK's reordering window does so, RFC 8985 section 6.2).
    """

    def __init__(
        self,
        *,
        min_timeout_s: float = MIN_TIMEOUT_S,
        initial_timeout_s: float = INITIAL_TIMEOUT_S,
        max_round_trips: float = math.inf,
        max_backoff: float = math.inf,
    ) -> None:
        """Beyond its minimum the timeout has at most `max_round_trips` smoothed round trips, and a sample counts as no
        more than that: where an answer waits for others as well, one that took long says little of the path. Doubling
        ends at `max_backoff` timeouts."""
        self._min_timeout_s = min_timeout_s
        self._max_round_trips = max_round_trips
        self._max_backoff = max_backoff
        self.timeout_s = initial_timeout_s
        self.smoothed_s: float | None = None
        self.least_s = 0.0
        """The shortest round trip so far."""
        self.patience = MIN_PATIENCE
        """In smoothed round trips."""
        self._grown_s = 0.0
        self._variation_s = 0.0

    def sample(self, round_trip_s: float) -> None:
        """One round trip, of a packet that was sent once (Karn's algorithm)."""
        if self.smoothed_s is None:
            self.smoothed_s, self._variation_s = round_trip_s, round_trip_s / 2
            self.least_s = round_trip_s
        else:
            round_trip_s = min(round_trip_s, self._max_round_trips * self.smoothed_s)
            self._variation_s += (abs(self.smoothed_s - round_trip_s) - self._variation_s) / 4
            self.smoothed_s += (round_trip_s - self.smoothed_s) / 8
            self.least_s = min(self.least_s, round_trip_s)
        spread_s = max(GRANULARITY_S, min(4 * self._variation_s, (self._max_round_trips - 1) * self.smoothed_s))
        self.timeout_s = min(MAX_TIMEOUT_S, max(self._min_timeout_s, self.smoothed_s + spread_s))

    @property
    def patience_s(self) -> float:
        """How long a chunk that others overtook must have been under way to be taken for lost."""
        return self.patience * (self.smoothed_s or 0.0)

    def was_late(self, since_sent_s: float, now_s: float) -> bool:
        """Whether a chunk that was taken for lost, and sent last so long before its result, was only late."""
        if since_sent_s < self.least_s:
            if now_s - self._grown_s >= (self.smoothed_s or 0.0):
                self.patience, self._grown_s = min(MAX_PATIENCE, self.patience + PATIENCE_STEP), now_s
            return True
        self.patience -= (self.patience - MIN_PATIENCE) * PATIENCE_DECAY
        return False

    def after_attempts_s(self, attempts: int) -> float:
        """How long to wait for the answer to the attempts-th transmission: doubles with each, up to a limit."""
        return min(MAX_TIMEOUT_S, self.timeout_s * min(2.0 ** min(attempts - 1, 16), self._max_backoff))
