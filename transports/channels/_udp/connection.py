"""One end of a reliable UDP connection: what it must send, when, and what has come. No sockets, no clock.

Two streams of bytes, one each way (`outgoing.py`, `incoming.py`). A stream is the messages in the order they
were posted, each behind its frame header; a packet carries bytes of one message. Here is what both have to do with each
other, with the time and with the network: how much may be under way and how fast (window and pace), round trips, loss
by time as in RFC 9002 (9/8 of a round trip has passed, a probe follows where nothing comes), pings, graceful close.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from switch_agg.core import Address, Datagram
from switch_agg.round_trip import RoundTripEstimator
from switch_agg.window import FixedWindow, Window
from transports.channels._udp.delivery import UNMEASURED, Delivery, DeliveryMeter
from transports.channels._udp.incoming import MAX_ACKNOWLEDGEMENT_DELAY_S, Arrival, Incoming
from transports.channels._udp.outgoing import Outgoing, Run, Taken
from transports.channels._udp.pacing import BURST_S, Pace, Pacer
from transports.channels._udp.wire import HEADER as DATAGRAM_HEADER
from transports.channels._udp.wire import (
    OVERHEAD_BYTES,
    Acknowledged,
    Kind,
    Packet,
    pack,
    unpack,
    unpack_acknowledged,
    whole,
)
from transports.channels.framing import Farewell
from transports.errors import FrameMismatchError

TIME_THRESHOLD: Final = 9 / 8
GRANULARITY_S: Final = 1e-3
TAKE_BACK_S: Final = 5e-4
MAX_RUN_PACKETS: Final = 176
"""Four of the kernel's largest datagrams."""
WINDOW_GAIN: Final = 2.0
"""How much faster than a window each round trip a sender without a rate of its own may go."""
PING_S: Final = 0.5
"""A peer that is silent for so long while something is expected of it is sent a PING."""


class Connection:
    """One end. `local` and `remote` are the numbers that the ends chose for the connection."""

    def __init__(
        self,
        *,
        peer: Address,
        local: int,
        remote: int,
        packet_bytes: int,
        window: Window,
        pace: Pace,
        pacer: Pacer,
        now_s: float,
    ) -> None:
        """`packet_bytes` is what a full packet carries."""
        self.peer, self.local, self.remote = peer, local, remote
        self._wire_bytes = packet_bytes + OVERHEAD_BYTES
        self._window, self._pace, self._pacer = window, pace, pacer
        self.completions: list[int] = []
        self.outgoing = Outgoing(packet_bytes, self.completions)
        self.incoming = Incoming(self.completions, now_s)
        self.restarted = False
        """Whether the other end says that it knows nothing of this connection."""
        self.heard_s = now_s
        self._round_trip = RoundTripEstimator()
        self._latest_s = 0.0
        self._meter = DeliveryMeter()
        self._marks_seen = 0
        self._armed_s: float | None = None
        """Since when the probe timer runs; None: it does not."""
        self._probes_unanswered = 0
        self._num_probes = 0
        self._pinged_s = now_s
        self._controls: list[bytes] = []
        # The end.
        self._leaving: tuple[Farewell, int] | None = None
        self._leave_s = 0.0
        self.leave_answered = False
        self._left: tuple[Farewell, int] | None = None
        # Counts.
        self.acknowledgement_bytes = 0
        self.num_rejected = 0

    # --- requests to it -----------------------------------------------------------------------------------------

    def leave(self, farewell: Farewell, now_s: float) -> None:
        """Begin a graceful close: messages whose token is still out are given up, those before them are delivered."""
        self._leaving, self._leave_s = (farewell, self.outgoing.give_up()), now_s

    @property
    def spare_s(self) -> float:
        """How long it can go on sending at its rate without another acknowledgement; infinity: nothing is under way."""
        num_packets = self.outgoing.num_under_way
        if num_packets == 0:
            return math.inf
        rate_bps, room = self._rate_bps(), self._room_packets()
        if rate_bps is None:  # before the first round trip
            return math.inf if num_packets <= room else 0.0
        return max(0, room) * self._wire_bytes * 8 / rate_bps

    @property
    def needs_attention(self) -> bool:
        """Whether the peer leaves, is not what it was, or disagrees."""
        return self.restarted or self._left is not None or self.incoming.disagreement is not None

    @property
    def moved_bytes(self) -> int:
        """Grows when anything arrives, here or there."""
        return self.incoming.payload_bytes + self.outgoing.delivered_bytes

    @property
    def first_pending(self) -> bytes | None:
        """The frame header of the message that is waited for, an expected one before one to send."""
        return self.incoming.first_expected or self.outgoing.first_pending

    @property
    def farewell(self) -> Farewell | None:
        """What the peer said when it left, once all that it sent has come."""
        if self._left is None or self.incoming.received.prefix < self._left[1]:
            return None
        return self._left[0]

    @property
    def peer_leaves(self) -> bool:
        """Whether the peer has said that it leaves."""
        return self._left is not None

    # --- what has come ------------------------------------------------------------------------------------------

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """See switch_agg.core.Core: everything is checked, payload goes to its place."""
        for datagram in datagrams:
            try:
                packet = unpack(datagram.data)
            except FrameMismatchError:
                self.num_rejected += 1
                continue
            if packet.kind is not Kind.DATA or packet.connection != self.local:
                self.on_control(packet, now_s)
            elif self.incoming.place(packet):
                arrived_s, num_bytes = now_s - datagram.age_s, len(packet.body)
                self.on_packets(
                    Arrival(packet.number, 1, packet.offset, num_bytes, datagram.marked, arrived_s, num_bytes), now_s
                )
            else:
                self.num_rejected += 1

    def on_packets(self, arrival: Arrival, now_s: float) -> None:
        """They have come, and their bytes lie where they belong."""
        self.heard_s = now_s
        self.incoming.on_packets(arrival, now_s)

    def on_control(self, packet: Packet, now_s: float) -> None:
        """A datagram without data, or one of another connection, has come."""
        if packet.kind is Kind.UNKNOWN_CONNECTION:
            self.restarted |= packet.connection == self.remote
            return
        if packet.connection != self.local:
            self.num_rejected += 1
            self._controls.append(pack(packet.connection, 0, Kind.UNKNOWN_CONNECTION, 0))
            return
        self.heard_s = now_s
        if packet.kind is Kind.ACKNOWLEDGEMENT:
            try:
                self._on_acknowledgement(packet, now_s)
            except FrameMismatchError:
                self.num_rejected += 1
        elif packet.kind is Kind.PING:
            self.incoming.acknowledge_s = 0.0
        elif packet.kind is Kind.CLOSE:
            lost = int.from_bytes(packet.body, "little")
            self._left = (Farewell(packet.number, lost - 1 if lost else None), packet.offset)
            self._controls.append(pack(self.remote, 0, Kind.LEFT, 0))
        elif packet.kind is Kind.LEFT:
            self.leave_answered = self._leaving is not None

    def _on_acknowledgement(self, packet: Packet, now_s: float) -> None:
        outgoing = self.outgoing
        largest = whole(packet.number, outgoing.next_number)
        said = unpack_acknowledged(largest, packet.body)
        outgoing.limit = max(outgoing.limit, packet.offset)
        if not said.ranges or largest >= outgoing.next_number:
            return
        marked = self._marks_seen < said.marks
        self._marks_seen = max(self._marks_seen, said.marks)
        taken = outgoing.on_acknowledged(said.ranges, largest)
        if taken is not None:
            self._probes_unanswered = 0
            round_trip_s = self._measure(taken, said, now_s) if taken.holds_largest else None
            if not isinstance(self._window, FixedWindow):
                self._window.on_result(round_trip_s, marked=marked, now_s=now_s)
                for _ in range(taken.num_packets - 1):
                    self._window.on_result(round_trip_s, marked=False, now_s=now_s)
        self._detect_loss(now_s)
        self._arm(now_s)

    def _measure(self, taken: Taken, said: Acknowledged, now_s: float) -> float:
        """The round trip of the newest packet, without the peer's delay; the pace learns how packets came through."""
        self._latest_s = max(now_s - taken.newest.sent_s, 1e-6)
        self._round_trip.sample(self._latest_s)
        round_trip_s = max(self._latest_s - said.delay_s, 1e-6)
        delivery = self._delivery(taken, said) if self._pace.discovers else UNMEASURED
        self._pace.on_acknowledged(delivery, round_trip_s, self._flight_bytes, now_s)
        return round_trip_s

    def _delivery(self, taken: Taken, said: Acknowledged) -> Delivery:
        """How packets came through, whole ones on the wire."""
        delivery = self._meter.on_acknowledged(
            arrived_us=said.arrived_us,
            sent_s=taken.newest.sent_s,
            delivered_bytes=self.outgoing.delivered_bytes,
            train_bytes=said.train_bytes,
            app_limited=taken.app_limited,
            round_trip_s=self._round_trip.least_s,
        )
        if delivery.rate_bps is None:
            return delivery
        rate_bps = delivery.rate_bps / self.outgoing.packet_bytes * self._wire_bytes
        return delivery._replace(rate_bps=rate_bps if taken.newest.saturated else None)

    def _detect_loss(self, now_s: float) -> None:
        round_trip_s = max(self._round_trip.smoothed_s or self._latest_s, self._latest_s)
        if self.outgoing.detect_loss(max(TIME_THRESHOLD * round_trip_s, GRANULARITY_S), now_s):
            self._window.on_loss(now_s)

    # --- what to send -------------------------------------------------------------------------------------------

    @property
    def _flight_bytes(self) -> int:
        return self.outgoing.num_under_way * self._wire_bytes

    def _room_packets(self) -> int:
        """Packets that window and pace let under way now."""
        room, allowed_bytes = self._window.size, self._pace.flight_bytes
        if allowed_bytes is not None:
            room = min(room, int(allowed_bytes) // self._wire_bytes)
        return room - self.outgoing.num_under_way

    def _rate_bps(self) -> float | None:
        """The pace's rate; without one, the window's packets spread over a round trip, with room for it to grow."""
        rate_bps, smoothed_s = self._pace.rate_bps, self._round_trip.smoothed_s
        if rate_bps is not None or smoothed_s is None:
            return rate_bps
        return WINDOW_GAIN * self._window.size * self._wire_bytes * 8 / smoothed_s

    def next_run(self, now_s: float) -> Run | None:
        """The next packets to send now, already counted as sent; None when there are none or it is too early."""
        probing = self._num_probes > 0
        if not probing and not self._pacer.opens(now_s):
            return None
        wanted = self.outgoing.wanted()
        if wanted is None:
            return None
        room = self._room_packets()
        if probing:
            max_packets, self._num_probes = 1, self._num_probes - 1
        elif room <= 0:
            return None
        else:
            max_packets = min(room, self._burst_packets())
        after_rest = self._flight_bytes <= self._pace.path_bytes
        run = self.outgoing.take(wanted, max_packets, now_s, room=room, after_rest=after_rest)
        self._pacer.spend(run.num_bytes + run.num_packets * OVERHEAD_BYTES, self._rate_bps(), now_s)
        self._armed_s = now_s
        return run

    def take_back(self, run: Run, num_sent: int, now_s: float) -> None:
        """The machine sent only the first packets of the run that `next_run` has just given; the others are tried again
        a little later."""
        self.outgoing.take_back(run, num_sent)
        self._pacer.pause(now_s + TAKE_BACK_S)

    def _burst_packets(self) -> int:
        rate_bps = self._rate_bps()
        if rate_bps is None:
            return MAX_RUN_PACKETS
        return max(1, min(MAX_RUN_PACKETS, int(rate_bps * BURST_S / 8 / self._wire_bytes)))

    def datagrams_of(self, run: Run) -> list[bytes]:
        """The run on the wire; the native sender makes the same."""
        found, end, packet_bytes = [], run.offset + run.num_bytes, self.outgoing.packet_bytes
        for index in range(run.num_packets):
            offset = run.offset + index * packet_bytes
            body = run.message.read(offset, min(packet_bytes, end - offset))
            found.append(pack(self.remote, run.first + index, Kind.DATA, offset, body))
        return found

    def controls(self, now_s: float) -> list[bytes]:
        """Datagrams without data that are due, already counted as sent."""
        found, self._controls = self._controls, []
        if self.incoming.acknowledge_s is not None and now_s >= self.incoming.acknowledge_s:
            found.append(self.incoming.acknowledgement(self.remote, now_s))
            self.acknowledgement_bytes += len(found[-1]) + OVERHEAD_BYTES - DATAGRAM_HEADER.size
        if self._leaving is not None and not self.leave_answered and now_s >= self._leave_s:
            self._leave_s = now_s + self._round_trip.timeout_s
            farewell, end = self._leaving
            lost = 0 if farewell.lost is None else farewell.lost + 1
            found.append(pack(self.remote, farewell.after, Kind.CLOSE, end, lost.to_bytes(4, "little")))
        return found

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """See switch_agg.core.Core."""
        found = self.controls(now_s)
        while (run := self.next_run(now_s)) is not None:
            found += self.datagrams_of(run)
        return [Datagram(self.peer, data) for data in found]

    # --- time ---------------------------------------------------------------------------------------------------

    def _arm(self, now_s: float) -> None:
        """The probe timer (RFC 9002, 6.2): while anything is under way, or held back by the peer."""
        self._armed_s = now_s if self.outgoing.unfinished else None

    def _probe_s(self, armed_s: float) -> float:
        """When that timer ends."""
        timeout_s = self._round_trip.after_attempts_s(1 + self._probes_unanswered)
        return armed_s + timeout_s + MAX_ACKNOWLEDGEMENT_DELAY_S

    def deadline_s(self) -> float:
        """See switch_agg.core.Core."""
        found = [self._ping_s()]
        if self.incoming.acknowledge_s is not None:
            found.append(self.incoming.acknowledge_s)
        if self.outgoing.loss_s is not None:
            found.append(self.outgoing.loss_s)
        if self.outgoing.unfinished:
            found.append(self._probe_s(self._armed_s) if self._armed_s is not None else 0.0)
            if self._room_packets() > 0 and self.outgoing.wanted() is not None:
                found.append(self._pacer.next_s)
        if self._leaving is not None and not self.leave_answered:
            found.append(self._leave_s)
        return min(found)

    def _ping_s(self) -> float:
        return max(self.heard_s, self._pinged_s) + PING_S

    def expire(self, now_s: float) -> None:
        """See switch_agg.core.Core."""
        if self.outgoing.loss_s is not None and now_s >= self.outgoing.loss_s:
            self._detect_loss(now_s)
        if self._armed_s is None:
            self._arm(now_s)
        elif now_s >= self._probe_s(self._armed_s):
            if self.outgoing.unfinished:
                self._probe(now_s)
            else:
                self._arm(now_s)
        if now_s >= self._ping_s():
            self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        self._pinged_s = now_s
        self._controls.append(pack(self.remote, 0, Kind.PING, 0))

    def _probe(self, now_s: float) -> None:
        self._probes_unanswered += 1
        if self.outgoing.repeat_oldest(2):
            self._num_probes = 2
        elif self.outgoing.wanted() is None:
            self._ask(now_s)
        self._arm(now_s)
