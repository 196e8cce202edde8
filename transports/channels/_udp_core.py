"""One end of a reliable UDP connection: what it must send, when, and what has come. No sockets, no clock.

Two streams of bytes, one each way. A stream is the messages in the order they were posted, each behind its frame
header; a packet carries bytes of one message. Packets are numbered as in QUIC (RFC 9000): a number is never used twice,
so an acknowledgement is never ambiguous, and what is lost travels again under a new number. Loss is found as in RFC
9002: three later packets were acknowledged, or 9/8 of a round trip has passed; a probe follows where nothing comes.

Everything is counted in runs, packets with consecutive numbers and consecutive bytes, since the kernel moves those
together (UDP_SEGMENT and UDP_GRO in udp(7)). A receiver allows as much as it has posted, and a little that it puts
aside. Payload goes straight to the message's own memory.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from switch_agg.core import Address, Datagram
from switch_agg.round_trip import RoundTripEstimator
from switch_agg.window import FixedWindow, Window
from transports.channels._udp_delivery import DeliveryMeter
from transports.channels._udp_pacing import BURST_S, Pace, Pacer
from transports.channels._udp_wire import HEADER as DATAGRAM_HEADER
from transports.channels._udp_wire import (
    MAX_RANGES,
    OVERHEAD_BYTES,
    Kind,
    Packet,
    pack,
    pack_acknowledged,
    unpack,
    unpack_acknowledged,
    whole,
)
from transports.errors import FrameMismatchError
from transports.framing import HEADER_BYTES

ASIDE_BYTES: Final = 2**20
"""What a receiver keeps of messages that it has not posted yet; both ends count on it."""
PACKET_THRESHOLD: Final = 3
TIME_THRESHOLD: Final = 9 / 8
GRANULARITY_S: Final = 1e-3
MAX_ACKNOWLEDGEMENT_DELAY_S: Final = 1e-3
PACKETS_PER_ACKNOWLEDGEMENT: Final = 16
TAKE_BACK_S: Final = 5e-4
MAX_RUN_PACKETS: Final = 176
"""Four of the kernel's largest datagrams."""
WINDOW_GAIN: Final = 2.0
"""How much faster than a window each round trip a sender without a rate of its own may go."""
PING_S: Final = 0.5
"""A peer that is silent for so long while something is expected of it is asked whether it is there."""


class Ranges:
    """A set of integers as sorted, disjoint, half-open ranges that do not touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Put start..end-1 in; returns how many of them are new."""
        if self.ends and start >= self.ends[-1]:  # as what comes in order does
            if start > self.ends[-1]:
                self.starts.append(start)
                self.ends.append(end)
            else:
                self.ends[-1] = end
            return end - start
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first == last:
            self.starts.insert(first, start)
            self.ends.insert(first, end)
            return end - start
        known = sum(min(end, self.ends[index]) - max(start, self.starts[index]) for index in range(first, last))
        self.starts[first:last] = [min(start, self.starts[first])]
        self.ends[first:last] = [max(end, self.ends[last - 1])]
        return end - start - known

    def covers(self, start: int, end: int) -> bool:
        """Whether all of start..end-1 is in it."""
        index = bisect_right(self.starts, start) - 1
        return index >= 0 and end <= self.ends[index]

    @property
    def prefix(self) -> int:
        """How many of 0, 1, 2... are in it without a gap."""
        return self.ends[0] if self.starts and self.starts[0] == 0 else 0

    def keep_last(self, num_ranges: int) -> None:
        """Forget all but the largest."""
        del self.starts[:-num_ranges], self.ends[:-num_ranges]


class Outgoing:
    """A message to send."""

    __slots__ = ("end", "header", "pointers", "start", "token", "view")

    def __init__(self, start: int, header: bytes, view: memoryview, token: int | None) -> None:
        self.start, self.end = start, start + HEADER_BYTES + len(view)
        self.header, self.view = header, view
        self.token = token
        """What completes when all of it is acknowledged; None where that has been said."""
        self.pointers: tuple[int, int] | None = None
        """Addresses of header and payload, for the native sender."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of the stream from that offset."""
        begin, end = offset - self.start, offset - self.start + num_bytes
        return self.header[begin:end] + bytes(self.view[max(begin - HEADER_BYTES, 0) : max(end - HEADER_BYTES, 0)])


class Incoming:
    """A message that is expected, or begun."""

    __slots__ = ("end", "expected", "header", "start", "token", "view")

    def __init__(self, start: int, expected: bytes, view: memoryview, token: int) -> None:
        self.start, self.end = start, start + HEADER_BYTES + len(view)
        self.expected, self.view, self.token = expected, view, token
        self.header = bytearray(HEADER_BYTES)


class Run(NamedTuple):
    """Packets with consecutive numbers that carry consecutive bytes of one message."""

    message: Outgoing
    first: int
    num_packets: int
    offset: int
    num_bytes: int
    sent_s: float
    after_rest: bool
    """Whether so little was under way that the network may have had nothing to do."""
    saturated: bool
    """Whether the network, and not the application, held the sender back."""


class Target(NamedTuple):
    """Where bytes of the incoming stream belong."""

    start: int
    end: int
    view: memoryview


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
        self.packet_bytes = packet_bytes
        self._wire_bytes = packet_bytes + OVERHEAD_BYTES
        self._window, self._pace, self._pacer = window, pace, pacer
        self.completions: list[int] = []
        self.disagreement: tuple[bytes, bytes] | None = None
        """The frame header that came and the one that was expected."""
        self.restarted = False
        """Whether the other end says that it knows nothing of this connection."""
        self.heard_s = now_s
        # Out.
        self._outgoing: deque[Outgoing] = deque()
        """Not all acknowledged."""
        self._unsent: deque[Outgoing] = deque()
        self._stream_end = 0
        self._next_offset = 0
        self._next_number = 0
        self._sent: list[Run] = []
        self._lost: deque[tuple[Outgoing, int, int]] = deque()
        self._flight_packets = 0
        self._acknowledged = Ranges()
        self._limit = ASIDE_BYTES
        self._round_trip = RoundTripEstimator()
        self._latest_s = 0.0
        self._largest_acknowledged = -1
        self._delivered_bytes = 0
        self._meter = DeliveryMeter()
        self._marks_seen = 0
        self._probe_s: float | None = None
        self._probes_unanswered = 0
        self._num_probes = 0
        self._loss_s: float | None = None
        self._asked_s = now_s
        # In.
        self._numbers = Ranges()
        self._arrived_s = now_s
        self._train_bytes = 0
        self.received = Ranges()
        self._incoming: deque[Incoming] = deque()
        self._posted_end = 0
        self._aside = bytearray(ASIDE_BYTES)
        self._arrived_end = 0
        self._allowed = ASIDE_BYTES
        self._marks = 0
        self._unacknowledged = 0
        self._acknowledge_s: float | None = None
        self._controls: list[bytes] = []
        # The end.
        self._leaving: tuple[int, int] | None = None
        self._leave_s = 0.0
        self.leave_answered = False
        self._left: tuple[int, int] | None = None
        # Counts.
        self.sent_payload_bytes = self.received_payload_bytes = 0
        self.acknowledgement_bytes = self.retransmitted_bytes = 0
        self.num_rejected = 0
        self.version = 0
        """Changes when `targets` have been added to."""

    # --- what is asked of it ------------------------------------------------------------------------------------

    def send(self, header: bytes, view: memoryview, token: int | None) -> None:
        """Queue a message. `view` may change once the token completes; without one, never."""
        message = Outgoing(self._stream_end, header, view, token)
        self._stream_end = message.end
        self._outgoing.append(message)
        self._unsent.append(message)

    def expect(self, header: bytes, view: memoryview, token: int) -> None:
        """The next message goes here. Bytes of it that were put aside are moved."""
        message = Incoming(self._posted_end, header, view, token)
        self._incoming.append(message)
        self._posted_end = message.end
        self.version += 1
        here = min(message.end, self._arrived_end)
        if here > message.start:
            for target in (
                Target(message.start, message.start + HEADER_BYTES, memoryview(message.header)),
                Target(message.start + HEADER_BYTES, message.end, message.view),
            ):
                self._take_aside(target, here)
            self._complete()
        if self._posted_end + ASIDE_BYTES - self._allowed >= ASIDE_BYTES // 4:
            self._acknowledge_s = 0.0  # the sender may be waiting for leave to go on

    def _take_aside(self, target: Target, end: int) -> None:
        position, end = target.start, min(end, target.end)
        while position < end:
            begin = position % ASIDE_BYTES
            length = min(end - position, ASIDE_BYTES - begin)
            into = position - target.start
            target.view[into : into + length] = self._aside[begin : begin + length]
            position += length

    def peek(self) -> bytes | None:
        """The frame header of the next message that nobody expects yet, once it has come."""
        if self.received.prefix < self._posted_end + HEADER_BYTES:
            return None
        header = bytearray(HEADER_BYTES)
        self._take_aside(
            Target(self._posted_end, self._posted_end + HEADER_BYTES, memoryview(header)), self._arrived_end
        )
        return bytes(header)

    def leave(self, after: int, now_s: float) -> None:
        """Take leave: messages whose token is still out are given up, those before them are delivered."""
        end = next((message.start for message in self._outgoing if message.token is not None), self._stream_end)
        while self._unsent and self._unsent[-1].start >= end:
            self._unsent.pop()
        self._outgoing = deque(message for message in self._outgoing if message.end <= end)
        self._lost = deque(lost for lost in self._lost if lost[1] < end)
        self._sent = [run for run in self._sent if run.offset < end]
        self._flight_packets = sum(run.num_packets for run in self._sent)
        self._stream_end = end
        self._leaving, self._leave_s = (after, end), now_s

    @property
    def delivered(self) -> bool:
        """Whether the peer has acknowledged everything."""
        return not self._outgoing

    @property
    def expecting(self) -> bool:
        """Whether a message is expected that has not come."""
        return bool(self._incoming)

    @property
    def sending(self) -> bool:
        """Whether a message is under way whose token has not completed."""
        return any(message.token is not None for message in self._outgoing)

    @property
    def lacking_bytes(self) -> int:
        """Of the message that comes next, what has not come; 0 where none is expected."""
        return self._incoming[0].end - self.received.prefix if self._incoming else 0

    @property
    def flows(self) -> bool:
        """Whether what is under way is no more than half of what may be: acknowledgements are not urgent."""
        return not self._sent or self._flight_packets <= self._room_packets()

    @property
    def alarmed(self) -> bool:
        """Whether the peer leaves, is not what it was, or disagrees."""
        return self.restarted or self._left is not None or self.disagreement is not None

    @property
    def unacknowledged_bytes(self) -> int:
        """Of the stream to the peer, posted and not known to have arrived without a gap."""
        return self._stream_end - self._acknowledged.prefix

    @property
    def moved_bytes(self) -> int:
        """Grows when anything arrives, here or there."""
        return self.received_payload_bytes + self._delivered_bytes

    def first_pending(self) -> bytes | None:
        """The frame header of the message that is waited for, an expected one before one to send."""
        if self._incoming:
            return self._incoming[0].expected
        return next((message.header for message in self._outgoing if message.token is not None), None)

    @property
    def left_after(self) -> int | None:
        """The last operation that the peer had finished when it left, once all that it sent has come."""
        if self._left is None or self.received.prefix < self._left[1]:
            return None
        return self._left[0]

    @property
    def peer_leaves(self) -> bool:
        """Whether the peer has said that it leaves."""
        return self._left is not None

    # --- what has come ------------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        """Where the bytes of the stream go that may come now."""
        found = []
        for message in self._incoming:
            found.append(Target(message.start, message.start + HEADER_BYTES, memoryview(message.header)))
            found.append(Target(message.start + HEADER_BYTES, message.end, message.view))
        start, end = self._posted_end, self._posted_end + ASIDE_BYTES
        fold = start - start % ASIDE_BYTES + ASIDE_BYTES
        aside = memoryview(self._aside)
        found.append(Target(start, fold, aside[start % ASIDE_BYTES :]))
        if fold < end:
            found.append(Target(fold, end, aside[: end - fold]))
        return found

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """See switch_agg.core.Core: everything is checked, payload goes to its place."""
        for datagram in datagrams:
            try:
                packet = unpack(datagram.data)
            except FrameMismatchError:
                self.num_rejected += 1
                continue
            if packet.kind is Kind.DATA and packet.connection == self.local:
                end = packet.offset + len(packet.body)
                if end <= packet.offset or end > self._posted_end + ASIDE_BYTES:
                    self.num_rejected += 1
                    continue
                if packet.offset >= self.received.prefix:
                    self._place(packet)
                self.on_data(
                    packet.number, 1, packet.offset, len(packet.body), marked=datagram.marked, now_s=now_s,
                    arrived_s=now_s - datagram.age_s, train_bytes=len(packet.body),
                )  # fmt: skip
            else:
                self.on_control(packet, now_s)

    def _place(self, packet: Packet) -> None:
        start, end = packet.offset, packet.offset + len(packet.body)
        for target in self.targets():
            begin, finish = max(start, target.start), min(end, target.end)
            if begin < finish:
                target.view[begin - target.start : finish - target.start] = packet.body[begin - start : finish - start]

    def on_data(
        self,
        number: int,
        num_packets: int,
        offset: int,
        num_bytes: int,
        *,
        marked: bool,
        now_s: float,
        arrived_s: float,
        train_bytes: int,
    ) -> None:
        """A run of packets has come, and its bytes lie where `targets` says. The last `train_bytes` of it arrived
        together."""
        self.heard_s = now_s
        largest = self._numbers.ends[-1] if self._numbers.ends else 0
        first = whole(number, largest)
        num_new = self._numbers.add(first, first + num_packets)
        self._numbers.keep_last(4 * MAX_RANGES)
        if first + num_packets > largest:
            self._arrived_s, self._train_bytes = arrived_s, train_bytes
        if marked:
            self._marks += num_packets
        self._unacknowledged += num_packets
        prefix = self.received.prefix
        self.received_payload_bytes += self.received.add(offset, offset + num_bytes)
        self._arrived_end = max(self._arrived_end, offset + num_bytes)
        disordered = first != largest or num_new < num_packets
        completed = self._complete() if self.received.prefix > prefix else False
        at_once = disordered or marked or completed or self._unacknowledged >= PACKETS_PER_ACKNOWLEDGEMENT
        due_s = 0.0 if at_once else now_s + MAX_ACKNOWLEDGEMENT_DELAY_S
        self._acknowledge_s = due_s if self._acknowledge_s is None else min(due_s, self._acknowledge_s)

    def _complete(self) -> bool:
        prefix, completed = self.received.prefix, False
        while self._incoming and prefix >= self._incoming[0].start + HEADER_BYTES:
            message = self._incoming[0]
            if message.header != message.expected:
                self.disagreement = (bytes(message.header), message.expected)
                return True
            if prefix < message.end:
                break
            self.completions.append(message.token)
            self._incoming.popleft()
            completed = True
        return completed

    def on_control(self, packet: Packet, now_s: float) -> None:
        """A datagram without data, or one of another connection, has come."""
        if packet.kind is Kind.STRANGER:
            self.restarted |= packet.connection == self.remote
            return
        if packet.connection != self.local:
            self.num_rejected += 1
            self._controls.append(pack(packet.connection, 0, Kind.STRANGER, 0))
            return
        self.heard_s = now_s
        if packet.kind is Kind.ACKNOWLEDGEMENT:
            try:
                self._on_acknowledgement(packet, now_s)
            except FrameMismatchError:
                self.num_rejected += 1
        elif packet.kind is Kind.PING:
            self._acknowledge_s = 0.0
        elif packet.kind is Kind.LEAVE:
            self._left = (packet.number, packet.offset)
            self._controls.append(pack(self.remote, 0, Kind.LEFT, 0))
        elif packet.kind is Kind.LEFT:
            self.leave_answered = self._leaving is not None

    def _on_acknowledgement(self, packet: Packet, now_s: float) -> None:
        largest = whole(packet.number, self._next_number)
        said = unpack_acknowledged(largest, packet.body)
        self._limit = max(self._limit, packet.offset)
        if not said.ranges or largest >= self._next_number:
            return
        marked = self._marks_seen < said.marks
        self._marks_seen = max(self._marks_seen, said.marks)
        taken = self._take_acknowledged(said.ranges, largest)
        if taken is not None:
            newest, num_packets, holds_largest, rested = taken
            self._probes_unanswered = 0
            sample_s = None
            if holds_largest:
                self._latest_s = max(now_s - newest.sent_s, 1e-6)
                self._round_trip.sample(self._latest_s)
                sample_s = max(self._latest_s - said.delay_s, 1e-6)
                delivery = self._meter.on_acknowledged(
                    arrived_us=said.arrived_us,
                    sent_s=newest.sent_s,
                    delivered_bytes=self._delivered_bytes,
                    train_bytes=said.train_bytes,
                    rested=rested,
                    round_trip_s=self._round_trip.least_s,
                )
                if delivery.rate_bps is not None:
                    rate_bps = delivery.rate_bps / self.packet_bytes * self._wire_bytes
                    delivery = delivery._replace(rate_bps=rate_bps if newest.saturated else None)
                self._pace.on_acknowledged(delivery, sample_s, self._flight_packets * self._wire_bytes, now_s)
            if not isinstance(self._window, FixedWindow):
                self._window.on_result(sample_s, marked=marked, now_s=now_s)
                for _ in range(num_packets - 1):
                    self._window.on_result(sample_s, marked=False, now_s=now_s)
        self._detect_loss(largest, now_s)
        self._arm(now_s)

    def _take_acknowledged(self, ranges: Sequence[tuple[int, int]], largest: int) -> tuple[Run, int, bool, bool] | None:
        """Take out of `_sent` what is acknowledged. The newest run of it, the packets, whether the largest is new, and
        whether the network may have rested before any of them."""
        rising = ranges[::-1]
        kept: list[Run] = []
        newest: Run | None = None
        num_packets, index, holds_largest, rested = 0, 0, False, False
        split = len(self._sent)
        for position, run in enumerate(self._sent):
            if run.first > largest:
                split = position
                break
            at, end = run.first, run.first + run.num_packets
            while index < len(rising) and rising[index][1] < at:
                index += 1
            look = index
            while at < end and look < len(rising) and rising[look][0] < end:
                first, last = max(at, rising[look][0]), min(end - 1, rising[look][1])
                if first > at:
                    kept.append(self._part(run, at, first))
                taken = self._part(run, first, last + 1)
                self._delivered_bytes += self._acknowledged.add(taken.offset, taken.offset + taken.num_bytes)
                num_packets += taken.num_packets
                newest, holds_largest, rested = run, holds_largest or last == largest, rested or run.after_rest
                at = last + 1
                look += 1
            if at < end:
                kept.append(self._part(run, at, end))
        if newest is None:
            return None
        self._sent[:split] = kept
        self._flight_packets -= num_packets
        prefix = self._acknowledged.prefix
        while self._outgoing and self._outgoing[0].end <= prefix:
            token = self._outgoing.popleft().token
            if token is not None:
                self.completions.append(token)
        return newest, num_packets, holds_largest, rested

    def _part(self, run: Run, first: int, end: int) -> Run:
        """Packets first..end-1 of a run."""
        if first == run.first and end == run.first + run.num_packets:
            return run
        offset = run.offset + (first - run.first) * self.packet_bytes
        num_bytes = min((end - first) * self.packet_bytes, run.offset + run.num_bytes - offset)
        return run._replace(first=first, num_packets=end - first, offset=offset, num_bytes=num_bytes)

    def _detect_loss(self, largest: int, now_s: float) -> None:
        """RFC 9002, 6.1."""
        smoothed_s = self._round_trip.smoothed_s or self._latest_s
        delay_s = max(TIME_THRESHOLD * max(smoothed_s, self._latest_s), GRANULARITY_S)
        kept: list[Run] = []
        self._loss_s = None
        split = len(self._sent)
        any_lost = False
        for position, run in enumerate(self._sent):
            if run.first > largest:
                split = position
                break
            lost_end = run.first + run.num_packets
            if run.sent_s + delay_s > now_s:
                lost_end = max(run.first, min(lost_end, largest - PACKET_THRESHOLD + 1))
            if lost_end > run.first:
                lost = self._part(run, run.first, lost_end)
                self._flight_packets -= lost.num_packets
                self._lost.append((lost.message, lost.offset, lost.offset + lost.num_bytes))
                any_lost = True
            if lost_end < run.first + run.num_packets:
                kept.append(self._part(run, lost_end, run.first + run.num_packets))
                due_s = run.sent_s + delay_s
                self._loss_s = due_s if self._loss_s is None else min(self._loss_s, due_s)
        self._sent[:split] = kept
        self._largest_acknowledged = largest
        if any_lost:
            self._window.on_loss(now_s)

    # --- what to send -------------------------------------------------------------------------------------------

    def _room_packets(self) -> int:
        """Packets that window and pace let under way now."""
        room = self._window.size - self._flight_packets
        allowed_bytes = self._pace.flight_bytes
        if allowed_bytes is not None:
            room = min(room, int(allowed_bytes) // self._wire_bytes - self._flight_packets)
        return room

    def _rate_bps(self) -> float | None:
        """The pace's rate; without one, the window's packets spread over a round trip, with room for it to grow."""
        rate_bps, smoothed_s = self._pace.rate_bps, self._round_trip.smoothed_s
        if rate_bps is not None or smoothed_s is None:
            return rate_bps
        return WINDOW_GAIN * self._window.size * self._wire_bytes * 8 / smoothed_s

    def _wanted(self) -> tuple[Outgoing, int, int] | None:
        """The message, offset and end of what should travel next; it is not taken yet."""
        while self._lost:
            message, offset, end = self._lost[0]
            if self._acknowledged.covers(offset, end) or end <= self._acknowledged.prefix:
                self._lost.popleft()
                continue
            return message, offset, end
        if self._unsent:
            message = self._unsent[0]
            offset = max(self._next_offset, message.start)
            end = min(message.end, self._limit)
            if end < message.end:
                end = offset + max(0, end - offset) // self.packet_bytes * self.packet_bytes
            if end > offset:
                return message, offset, end
        return None

    def next_run(self, now_s: float) -> Run | None:
        """The next packets to send now, already counted as sent; None when there are none or it is too early."""
        wanted = self._wanted()
        if wanted is None:
            return None
        room = self._room_packets()
        if self._num_probes > 0:
            num_packets, self._num_probes = 1, self._num_probes - 1
        elif room <= 0 or not self._pacer.opens(now_s):
            return None
        else:
            num_packets = min(room, self._burst_packets())
        message, offset, end = wanted
        retransmitted = bool(self._lost)
        finish = min(end, offset + num_packets * self.packet_bytes)
        num_packets = -(-(finish - offset) // self.packet_bytes)
        if retransmitted:
            self.retransmitted_bytes += finish - offset
            if finish < end:
                self._lost[0] = (message, finish, end)
            else:
                self._lost.popleft()
        else:
            self.sent_payload_bytes += finish - offset
            self._next_offset = finish
            if finish == message.end:
                self._unsent.popleft()
        after_rest = self._flight_packets * self._wire_bytes <= self._pace.path_bytes
        saturated = self._wanted() is not None or room <= num_packets
        run = Run(message, self._next_number, num_packets, offset, finish - offset, now_s, after_rest, saturated)
        self._next_number += num_packets
        self._sent.append(run)
        self._flight_packets += num_packets
        self._pacer.spend(finish - offset + num_packets * OVERHEAD_BYTES, self._rate_bps(), now_s)
        self._arm(now_s)
        return run

    def take_back(self, run: Run, num_sent: int, now_s: float) -> None:
        """The machine sent only the first packets of the run that `next_run` has just given; the others are tried again
        a little later."""
        assert self._sent[-1] is run
        self._sent.pop()
        if num_sent:
            self._sent.append(self._part(run, run.first, run.first + num_sent))
        back = self._part(run, run.first + num_sent, run.first + run.num_packets)
        self._flight_packets -= back.num_packets
        self._lost.appendleft((back.message, back.offset, back.offset + back.num_bytes))
        self.retransmitted_bytes -= back.num_bytes
        self._pacer.pause(now_s + TAKE_BACK_S)

    def _burst_packets(self) -> int:
        rate_bps = self._rate_bps()
        if rate_bps is None:
            return MAX_RUN_PACKETS
        return max(1, min(MAX_RUN_PACKETS, int(rate_bps * BURST_S / 8 / self._wire_bytes)))

    def datagrams_of(self, run: Run) -> list[bytes]:
        """The run on the wire; the native sender makes the same."""
        found, end = [], run.offset + run.num_bytes
        for index in range(run.num_packets):
            offset = run.offset + index * self.packet_bytes
            body = run.message.read(offset, min(self.packet_bytes, end - offset))
            found.append(pack(self.remote, run.first + index, Kind.DATA, offset, body))
        return found

    def controls(self, now_s: float) -> list[bytes]:
        """Datagrams without data that are due, already counted as sent."""
        found, self._controls = self._controls, []
        if self._acknowledge_s is not None and now_s >= self._acknowledge_s:
            found.append(self._acknowledgement(now_s))
            self.acknowledgement_bytes += len(found[-1]) + OVERHEAD_BYTES - DATAGRAM_HEADER.size
        if self._leaving is not None and not self.leave_answered and now_s >= self._leave_s:
            self._leave_s = now_s + self._round_trip.timeout_s
            found.append(pack(self.remote, self._leaving[0], Kind.LEAVE, self._leaving[1]))
        return found

    def _acknowledgement(self, now_s: float) -> bytes:
        starts, ends = self._numbers.starts[: -MAX_RANGES - 1 : -1], self._numbers.ends[: -MAX_RANGES - 1 : -1]
        ranges = [(start, end - 1) for start, end in zip(starts, ends, strict=True)]
        self._allowed = self._posted_end + ASIDE_BYTES
        self._unacknowledged = 0
        self._acknowledge_s = None
        largest = ranges[0][1] if ranges else 0
        body = pack_acknowledged(
            delay_s=max(0.0, now_s - self._arrived_s),
            arrived_s=self._arrived_s,
            train_bytes=self._train_bytes,
            marks=self._marks,
            ranges=ranges,
        )
        return pack(self.remote, largest, Kind.ACKNOWLEDGEMENT, self._allowed, body)

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """See switch_agg.core.Core."""
        found = self.controls(now_s)
        while (run := self.next_run(now_s)) is not None:
            found += self.datagrams_of(run)
        return [Datagram(self.peer, data) for data in found]

    # --- time ---------------------------------------------------------------------------------------------------

    def _arm(self, now_s: float) -> None:
        """The probe timer (RFC 9002, 6.2): while anything is under way, or held back by the peer."""
        if self._sent or self._unsent or self._lost:
            timeout_s = self._round_trip.after_attempts_s(1 + self._probes_unanswered)
            self._probe_s = now_s + timeout_s + MAX_ACKNOWLEDGEMENT_DELAY_S
        else:
            self._probe_s = None

    def deadline_s(self) -> float:
        """See switch_agg.core.Core."""
        found = [self._ping_s()]
        if self._acknowledge_s is not None:
            found.append(self._acknowledge_s)
        if self._loss_s is not None:
            found.append(self._loss_s)
        if self._unsent or self._sent or self._lost:
            found.append(self._probe_s if self._probe_s is not None else 0.0)
            if self._room_packets() > 0 and self._wanted() is not None:
                found.append(self._pacer.next_s)
        if self._leaving is not None and not self.leave_answered:
            found.append(self._leave_s)
        return min(found)

    def _ping_s(self) -> float:
        return max(self.heard_s, self._asked_s) + PING_S

    def expire(self, now_s: float) -> None:
        """See switch_agg.core.Core."""
        if self._loss_s is not None and now_s >= self._loss_s:
            self._detect_loss(self._largest_acknowledged, now_s)
        if self._probe_s is None:
            if self._unsent or self._sent or self._lost:
                self._arm(now_s)
        elif now_s >= self._probe_s:
            self._probe(now_s)
        if now_s >= self._ping_s():
            self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        self._asked_s = now_s
        self._controls.append(pack(self.remote, 0, Kind.PING, 0))

    def _probe(self, now_s: float) -> None:
        self._probes_unanswered += 1
        while self._sent and self._acknowledged.covers(
            self._sent[0].offset, self._sent[0].offset + self._sent[0].num_bytes
        ):
            self._flight_packets -= self._sent.pop(0).num_packets  # another copy of it has arrived
        if self._sent:
            run = self._sent[0]
            end = min(run.offset + run.num_bytes, run.offset + 2 * self.packet_bytes)
            self._lost.appendleft((run.message, run.offset, end))
            self._num_probes = 2
        elif not self._lost and self._wanted() is None:
            self._ask(now_s)
        self._arm(now_s)
