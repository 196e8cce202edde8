"""How fast packets came through, by the receiver's clock. Pure.

Delivery rates as in Cheng et al., draft-cheng-iccrg-delivery-rate-estimation, but between times at which the
receiver's kernel took packets in (as draft-smith-quic-receive-ts says them), not between those at which
acknowledgements were read: a member that waits for a core reads many at once, and would take that for speed. The
longer of the times that sending and arriving took counts, since packets that are held up on the way arrive in lumps as
well.

A rate says what the network can do only where the network was busy all the time. That is inferred from the time that
packets were on their way: they waited in a queue when it is longer than the shortest of late. Both clocks may differ,
as long as they go alike.
"""

from collections import deque
from typing import Final, NamedTuple

MIN_INTERVAL_S: Final = 8e-3
"""Over less, a link that lets a burst pass after a rest looks faster than it is, and one that a timer drives too."""
QUEUE_S: Final = 2e-3
"""What packets wait without a queue that stands: senders hand over a millisecond's worth at once."""
_LIFE_S: Final = 10.0
"""How long the shortest of times is believed."""
_TICKS: Final = 2**32


class Delivery(NamedTuple):
    """What an acknowledgement says of the network."""

    rate_bps: float | None
    """Of payload, over an interval; None where that is too short yet."""
    busy_s: float
    """How long, since the acknowledgement before, the network has been seen to be busy all the time."""
    queue_s: float
    """How much longer the newest packet was on its way than the fastest of late."""


UNMEASURED: Final = Delivery(None, 0.0, 0.0)
"""For those who need not know."""


class _Point(NamedTuple):
    arrived_s: float
    sent_s: float
    delivered_bytes: int
    train_bytes: int
    queued: bool


class Shortest:
    """The shortest of late of what is measured again and again."""

    def __init__(self) -> None:
        self.value_s: float | None = None
        self._until_s = 0.0

    def take(self, value_s: float, now_s: float) -> float:
        """One more, measured now. Returns the shortest."""
        if self.value_s is None or value_s <= self.value_s or now_s >= self._until_s:
            self.value_s, self._until_s = value_s, now_s + _LIFE_S
        return self.value_s


class DeliveryMeter:
    """Remembers what was acknowledged of late."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._ticks = 0
        self._shortest = Shortest()

    def on_acknowledged(
        self,
        *,
        arrived_us: int,
        sent_s: float,
        delivered_bytes: int,
        train_bytes: int,
        app_limited: bool,
        round_trip_s: float,
    ) -> Delivery:
        """The newest packet arrived at that time of the receiver's clock (modulo 2^32), and had been sent at that one
        of the sender's. `app_limited`: the network may have had nothing to do before one of those acknowledged now; the
        round trip is the shortest."""
        self._ticks += (arrived_us - self._ticks + _TICKS // 2) % _TICKS - _TICKS // 2 if self._points else arrived_us
        arrived_s = self._ticks * 1e-6
        way_s = arrived_s - sent_s
        queue_s = way_s - self._shortest.take(way_s, sent_s)
        points = self._points
        point = _Point(arrived_s, sent_s, delivered_bytes, train_bytes, queue_s >= QUEUE_S)
        if points and arrived_s < points[-1].arrived_s:
            return Delivery(None, 0.0, queue_s)  # overtaken
        busy_s = 0.0
        if points and points[-1].queued and point.queued and not app_limited:
            busy_s = arrived_s - points[-1].arrived_s
        points.append(point)
        interval_s = max(MIN_INTERVAL_S, round_trip_s)
        while len(points) > 2 and points[1].arrived_s <= arrived_s - interval_s:
            points.popleft()
        first = points[0]
        if arrived_s - first.arrived_s < interval_s:
            return Delivery(None, busy_s, queue_s)
        # Of a train only the first packet's time is known, or the last one's: what both agree on counts.
        between_bytes = delivered_bytes - first.delivered_bytes - max(0, train_bytes - first.train_bytes)
        elapsed_s = max(arrived_s - first.arrived_s, sent_s - first.sent_s)
        return Delivery(max(0, between_bytes) * 8 / elapsed_s, busy_s, queue_s)
