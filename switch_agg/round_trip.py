"""The retransmission timer: RFC 6298's estimator with this protocol's bounds. Pure."""

from typing import Final

MIN_TIMEOUT_S: Final = 5e-3
"""Below, a machine with few cores mistakes its own scheduling for loss."""
MAX_TIMEOUT_S: Final = 1.0
INITIAL_TIMEOUT_S: Final = 0.1
"""Before the first sample; RFC 6298's full second is for the internet."""
GRANULARITY_S: Final = 1e-3


class RoundTripEstimator:
    """Smoothed round trip and its variation."""

    def __init__(self, *, min_timeout_s: float = MIN_TIMEOUT_S, initial_timeout_s: float = INITIAL_TIMEOUT_S) -> None:
        self._min_timeout_s = min_timeout_s
        self.timeout_s = initial_timeout_s
        self.smoothed_s: float | None = None
        self._variation_s = 0.0

    def sample(self, round_trip_s: float) -> None:
        """One round trip, of a packet that was sent once (Karn's algorithm)."""
        if self.smoothed_s is None:
            self.smoothed_s, self._variation_s = round_trip_s, round_trip_s / 2
        else:
            self._variation_s += (abs(self.smoothed_s - round_trip_s) - self._variation_s) / 4
            self.smoothed_s += (round_trip_s - self.smoothed_s) / 8
        spread_s = max(GRANULARITY_S, 4 * self._variation_s)
        self.timeout_s = min(MAX_TIMEOUT_S, max(self._min_timeout_s, self.smoothed_s + spread_s))

    def after_attempts_s(self, attempts: int) -> float:
        """How long to wait for the answer to the attempts-th transmission: doubles with each."""
        return min(MAX_TIMEOUT_S, self.timeout_s * 2.0 ** min(attempts - 1, 16))
