"""How fast a UDP connection may send: at a rate that is given, or at the one that it discovers. Pure.

Discovery is BBR's (Cardwell et al., ACM Queue 14(5), 2016): the rate is the largest at which acknowledgements have come
back of late, so that random loss does not slow it down; start-up, drain and the cycle of gains are its version 1's.
Unlike it, a rate is forgotten only while the network is seen to be busy, a probe that finds more goes on, and draining
follows the queue that is seen. Left out are its probes of the round trip, since operations end and begin all the time
and drain the queue themselves.
"""

from collections import deque
from typing import Final, Protocol

from transports.channels._udp.delivery import MIN_INTERVAL_S, QUEUE_S, Delivery, Shortest

BURST_S: Final = 1e-3
"""What a sender hands over at once, at its rate: so long it may then sleep."""
CATCH_UP_S: Final = 4e-3
"""A sender that the scheduler kept away for up to this long makes up for it,"""
LONGEST_CATCH_UP_S: Final = 10e-3
CATCH_UP_BYTES: Final = 500_000
"""and for longer while it is no more than so much, for which queues have room."""
JITTER_S: Final = 8e-3
"""What acknowledgements may be late by on a machine with few cores, without the sender falling silent."""
MIN_FLIGHT_BYTES: Final = 64 * 1514
_STARTUP_GAIN: Final = 2.89
_CYCLE: Final = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_MEMORY_S: Final = 0.2
"""For so long of a busy network the largest delivery rate is remembered, and for as many round trips as follow. What is
under way is bounded, so that a rate remembered too long costs a queue and little else."""
_ROUNDS: Final = 10
_FADING: Final = 0.02
"""How fast a rate ages that is not put to the test, as a part of the speed at which it does in a busy network..."""
_MAX_FADED_S: Final = 0.01
"""...and at rest it does not."""
_GROWTH: Final = 1.1
"""A probe that finds so many times the rate goes on."""
_DEEP_S: Final = 4e-3
"""A queue of so much is drained for longer than a phase..."""
_MAX_DRAINS: Final = 4
"""...of them so many, since it may be somebody else's."""
_PHASE_S: Final = MIN_INTERVAL_S
"""A phase of the cycle takes so long, or a round trip."""


class Pace(Protocol):
    """A rate and the bytes under way that it justifies, both of whole packets on the wire."""

    @property
    def discovers(self) -> bool:
        """Whether deliveries say anything to it; measuring them costs."""

    @property
    def rate_bps(self) -> float | None:
        """Bits per second to send at now; None: as fast as the window allows."""

    @property
    def flight_bytes(self) -> float | None:
        """How much may be under way; None: as much as the window allows."""

    @property
    def path_bytes(self) -> float:
        """With no more than this under way the network may rest."""

    def on_acknowledged(self, delivery: Delivery, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """A round trip was measured, and how packets came through, whole ones on the wire."""


class WindowPace:
    """No rate but the window's: a window per smoothed round trip is what self-clocking makes of it."""

    discovers: bool = False
    rate_bps: float | None = None
    flight_bytes: float | None = None
    path_bytes: float = 0.0

    def on_acknowledged(self, delivery: Delivery, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """Nothing changes."""


class FixedPace:
    """Always the same rate."""

    discovers: bool = False
    path_bytes: float = 0.0

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
        delivery: Delivery,  # noqa: ARG002 (the interface's)
        round_trip_s: float,
        flight_bytes: int,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> None:
        """Only the shortest round trip matters."""
        self._base_s = round_trip_s if self._base_s is None else min(self._base_s, round_trip_s)


class ProbedPace:
    """The largest rate of late, probed for more in turns. It is forgotten while the network is busy and delivers less;
    what is slow because the sender was, says nothing against it."""

    discovers: bool = True

    def __init__(self) -> None:
        self._best: deque[tuple[float, float]] = deque()  # (until what age it counts, bit/s), falling
        self._age_s = 0.0
        self._faded_s = 0.0
        self._base = Shortest()
        self._state = "startup"
        self._full_bps = 0.0
        self._rounds_without_growth = 0
        self._round_ends_s = 0.0
        self._phase = 0
        self._phase_ends_s = 0.0
        self._probed_bps = 0.0
        self._num_drains = 0
        self._latest_bps = 0.0

    @property
    def bottleneck_bps(self) -> float | None:
        """The rate that is believed."""
        return self._best[0][1] if self._best else None

    @property
    def rate_bps(self) -> float | None:
        """The bottleneck's rate times the gain of the state."""
        if self.bottleneck_bps is None:
            return None
        gains = {"startup": _STARTUP_GAIN, "drain": 1 / _STARTUP_GAIN, "probe": _CYCLE[self._phase]}
        return self.bottleneck_bps * gains[self._state]

    @property
    def flight_bytes(self) -> float | None:
        """Twice the bandwidth-delay product and the machine's jitter."""
        if self.bottleneck_bps is None or self._base.value_s is None:
            return MIN_FLIGHT_BYTES
        gain = _STARTUP_GAIN if self._state == "startup" else 2.0
        return max(MIN_FLIGHT_BYTES, self.bottleneck_bps / 8 * (gain * self._base.value_s + JITTER_S))

    @property
    def path_bytes(self) -> float:
        """What it held of late. A rate that is believed in error must not hide that the network is busy."""
        return min(self.bottleneck_bps or 0.0, self._latest_bps) / 8 * (self._base.value_s or 0.0)

    def on_acknowledged(self, delivery: Delivery, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        """Remember the rate, and move to the next state when it is time."""
        base_s = self._base.take(round_trip_s, now_s)
        faded_s = _FADING * min(now_s - self._faded_s, _MAX_FADED_S)
        self._age_s += max(delivery.busy_s, faded_s)
        self._faded_s = now_s
        while len(self._best) > 1 and self._best[0][0] < self._age_s:
            self._best.popleft()
        if delivery.rate_bps:
            self._latest_bps = delivery.rate_bps
            while self._best and self._best[-1][1] <= delivery.rate_bps:
                self._best.pop()
            self._best.append((self._age_s + max(_MEMORY_S, _ROUNDS * base_s), delivery.rate_bps))
        if self.bottleneck_bps is not None:
            self._advance(self.bottleneck_bps, base_s, delivery.queue_s, round_trip_s, flight_bytes, now_s)

    def _advance(
        self,
        bottleneck_bps: float,
        base_s: float,
        queue_s: float,
        round_trip_s: float,
        flight_bytes: int,
        now_s: float,
    ) -> None:
        filled = queue_s >= max(QUEUE_S, base_s / 2) and bottleneck_bps < _STARTUP_GAIN * self._full_bps
        if self._state == "startup" and filled:
            self._state = "drain"
        if self._state == "startup" and now_s >= self._round_ends_s:
            self._round_ends_s = now_s + max(round_trip_s, _PHASE_S)
            if bottleneck_bps >= 1.25 * self._full_bps:
                self._full_bps, self._rounds_without_growth = bottleneck_bps, 0
            else:
                self._rounds_without_growth += 1
                if self._rounds_without_growth >= 3:
                    self._state = "drain"
        drained = flight_bytes <= max(MIN_FLIGHT_BYTES, bottleneck_bps / 8 * base_s)
        if self._state == "drain" and (drained or queue_s < QUEUE_S):
            self._state, self._phase, self._phase_ends_s = "probe", len(_CYCLE) - 1, now_s
        if self._state == "probe" and now_s >= self._phase_ends_s:
            more = self._phase == 0 and bottleneck_bps >= _GROWTH * self._probed_bps
            deep = (
                self._phase == 1
                and not drained
                and queue_s >= max(_DEEP_S, base_s / 2)
                and self._num_drains < _MAX_DRAINS
            )
            self._num_drains = self._num_drains + 1 if deep else 0
            if not more and not deep:
                self._phase = (self._phase + 1) % len(_CYCLE)
            self._probed_bps = bottleneck_bps
            self._phase_ends_s = now_s + max(base_s, _PHASE_S)


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
            catch_up_s = max(CATCH_UP_S, min(LONGEST_CATCH_UP_S, CATCH_UP_BYTES * 8 / rate_bps))
            self.next_s = max(self.next_s, now_s - catch_up_s) + num_bytes * 8 / rate_bps
