"""How fast a UDP connection may send: at a rate that is given, or at the one that it discovers. Pure.

Discovery is BBR's (Cardwell et al., ACM Queue 14(5), 2016): the rate is the largest at which acknowledgements have come
back of late, so that random loss does not slow it down; start-up, drain and the cycle of gains are its version 1's.
Left out are its probes of the round trip, since operations end and begin all the time and drain the queue themselves.
"""

from collections import deque
from typing import Final, Protocol

BURST_S: Final = 1e-3
"""What a sender hands over at once, at its rate: so long it may then sleep."""
CATCH_UP_S: Final = 4e-3
"""A sender that the scheduler kept away for up to this long makes up for it."""
JITTER_S: Final = 8e-3
"""What acknowledgements may be late by on a machine with few cores, without the sender falling silent."""
MIN_FLIGHT_BYTES: Final = 64 * 1514
_STARTUP_GAIN: Final = 2.89
_CYCLE: Final = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_ROUNDS: Final = 10
"""Round trips for which the largest delivery rate is remembered."""
_MIN_PHASE_S: Final = 2e-3
_BASE_LIFE_S: Final = 10.0
"""How long the shortest round trip is believed."""


class Pace(Protocol):
    """A rate and the bytes under way that it justifies, both of whole packets on the wire."""

    @property
    def rate_bps(self) -> float | None:
        """Bits per second to send at now; None: as fast as the window allows."""

    @property
    def flight_bytes(self) -> float | None:
        """How much may be under way; None: as much as the window allows."""

    def on_acknowledged(self, delivery_bps: float | None, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """A round trip was measured, and the rate at which its packets came through; None where the application and
        not the network held the sender back and the rate says nothing."""


class WindowPace:
    """No rate but the window's: a window per smoothed round trip is what self-clocking makes of it."""

    rate_bps: float | None = None
    flight_bytes: float | None = None

    def on_acknowledged(self, delivery_bps: float | None, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """Nothing changes."""


class GivenPace:
    """Always the same rate."""

    def __init__(self, rate_bps: float) -> None:
        self.rate_bps: float | None = rate_bps
        self._base_s: float | None = None

    @property
    def flight_bytes(self) -> float | None:
        """Two round trips' worth, with room for late acknowledgements; unknown before the first."""
        if self._base_s is None or self.rate_bps is None:
            return None
        return max(MIN_FLIGHT_BYTES, self.rate_bps / 8 * (2 * self._base_s + JITTER_S))

    def on_acknowledged(
        self,
        delivery_bps: float | None,  # noqa: ARG002 (the interface's)
        round_trip_s: float,
        flight_bytes: int,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> None:
        """Only the shortest round trip matters."""
        self._base_s = round_trip_s if self._base_s is None else min(self._base_s, round_trip_s)


class DiscoveredPace:
    """The largest rate of the last round trips, probed for more in turns."""

    def __init__(self) -> None:
        self._best: deque[tuple[float, float]] = deque()  # (until when it counts, bit/s), falling
        self._base_s: float | None = None
        self._base_until_s = 0.0
        self._state = "startup"
        self._full_bps = 0.0
        self._rounds_without_growth = 0
        self._round_ends_s = 0.0
        self._phase = 0
        self._phase_ends_s = 0.0

    @property
    def _bottleneck_bps(self) -> float | None:
        return self._best[0][1] if self._best else None

    @property
    def rate_bps(self) -> float | None:
        """The bottleneck's rate times the gain of the state."""
        if self._bottleneck_bps is None:
            return None
        gains = {"startup": _STARTUP_GAIN, "drain": 1 / _STARTUP_GAIN, "probe": _CYCLE[self._phase]}
        return self._bottleneck_bps * gains[self._state]

    @property
    def flight_bytes(self) -> float | None:
        """Twice the bandwidth-delay product and the machine's jitter."""
        if self._bottleneck_bps is None or self._base_s is None:
            return MIN_FLIGHT_BYTES
        gain = _STARTUP_GAIN if self._state == "startup" else 2.0
        return max(MIN_FLIGHT_BYTES, self._bottleneck_bps / 8 * (gain * self._base_s + JITTER_S))

    def on_acknowledged(self, delivery_bps: float | None, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """Remember the rate, and move to the next state when it is time."""
        if self._base_s is None or round_trip_s <= self._base_s or now_s >= self._base_until_s:
            self._base_s, self._base_until_s = round_trip_s, now_s + _BASE_LIFE_S
        life_s = _ROUNDS * max(round_trip_s, _MIN_PHASE_S)
        if delivery_bps is not None:
            while self._best and self._best[-1][1] <= delivery_bps:
                self._best.pop()
            self._best.append((now_s + life_s, delivery_bps))
            while len(self._best) > 1 and self._best[0][0] < now_s:
                self._best.popleft()
        if self._bottleneck_bps is not None:
            self._advance(self._bottleneck_bps, round_trip_s, flight_bytes, now_s)

    def _advance(self, bottleneck_bps: float, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        assert self._base_s is not None
        if self._state == "startup" and now_s >= self._round_ends_s:
            self._round_ends_s = now_s + max(round_trip_s, _MIN_PHASE_S)
            if bottleneck_bps >= 1.25 * self._full_bps:
                self._full_bps, self._rounds_without_growth = bottleneck_bps, 0
            else:
                self._rounds_without_growth += 1
                if self._rounds_without_growth >= 3:
                    self._state = "drain"
        if self._state == "drain" and flight_bytes <= max(MIN_FLIGHT_BYTES, bottleneck_bps / 8 * self._base_s):
            self._state, self._phase, self._phase_ends_s = "probe", 2, now_s
        if self._state == "probe" and now_s >= self._phase_ends_s:
            self._phase = (self._phase + 1) % len(_CYCLE)
            self._phase_ends_s = now_s + max(self._base_s, _MIN_PHASE_S)


class Pacer:
    """Spaces packets out; several connections may share one, and with it a link."""

    def __init__(self) -> None:
        self.next_s = 0.0
        """When the next packet may leave, but for what a burst lets leave early."""
        self._burst_ends_s = 0.0

    def opens(self, now_s: float) -> bool:
        """Whether a packet may leave now: its time has come, or a burst that began at its time goes on."""
        if now_s >= self.next_s:
            self._burst_ends_s = now_s + BURST_S
        return self.next_s < self._burst_ends_s

    def pause(self, until_s: float) -> None:
        """Nothing leaves before."""
        self.next_s, self._burst_ends_s = max(self.next_s, until_s), 0.0

    def spend(self, num_bytes: int, rate_bps: float | None, now_s: float) -> None:
        """So much leaves now."""
        if rate_bps is not None:
            self.next_s = max(self.next_s, now_s - CATCH_UP_S) + num_bytes * 8 / rate_bps
