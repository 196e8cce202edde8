"""The stream that goes out over a UDP connection: what is under way, what was lost, what travels next. Pure.

Packets are numbered as in QUIC (RFC 9000): a number is never used twice, so an acknowledgement is never ambiguous, and
what is lost travels again under a new number. Everything is counted in runs, packets with consecutive numbers and
consecutive bytes, since the kernel moves those together (UDP_SEGMENT in udp(7)).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from transports.channels._udp.ranges import Ranges
from transports.channels._udp.wire import ASIDE_BYTES
from transports.channels.framing import HEADER_BYTES

PACKET_THRESHOLD: Final = 3
FEW_PACKETS: Final = 16
"""Fewer after a rest are too short a burst to judge a rate by."""


class Message:
    """One to send."""

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


class Run(NamedTuple):
    """Packets with consecutive numbers that carry consecutive bytes of one message."""

    message: Message
    first: int
    num_packets: int
    offset: int
    num_bytes: int
    sent_s: float
    after_rest: bool
    """Whether so little was under way that the network may have had nothing to do."""
    saturated: bool
    """Whether the network, and not the application, held the sender back."""


class Piece(NamedTuple):
    """Bytes of one message, by offsets in the stream."""

    message: Message
    offset: int
    end: int


class Taken(NamedTuple):
    """What an acknowledgement has taken from what was under way."""

    newest: Run
    num_packets: int
    holds_largest: bool
    """Whether the largest number that it names is among them."""
    app_limited: bool
    """Whether the network may have been idle before any of them, for want of data."""


class Outgoing:
    """The stream to the peer. Tokens of messages that have arrived go to `completions`."""

    def __init__(self, packet_bytes: int, completions: list[int]) -> None:
        """`packet_bytes` is what a full packet carries."""
        self.packet_bytes = packet_bytes
        self._completions = completions
        self._messages: deque[Message] = deque()
        """Not all acknowledged."""
        self._unsent: deque[Message] = deque()
        self._end = 0
        self._busy_from = 0
        """Where in the stream it was last idle."""
        self._next_offset = 0
        self._sent: list[Run] = []
        self._lost: deque[Piece] = deque()
        self._acknowledged = Ranges()
        self._largest_acknowledged = -1
        self.next_number = 0
        self.num_under_way = 0
        """Packets."""
        self.limit = ASIDE_BYTES
        """How far the peer lets the stream go."""
        self.loss_s: float | None = None
        """When what is under way longest has to be looked at again."""
        self.payload_bytes = self.retransmitted_bytes = self.delivered_bytes = 0

    # --- requests to it -----------------------------------------------------------------------------------------

    def post(self, header: bytes, view: memoryview, token: int | None) -> None:
        """Queue a message. `view` may change once the token completes; without one, never."""
        if not self.unfinished:
            self._busy_from = self._end
        message = Message(self._end, header, view, token)
        self._end = message.end
        self._messages.append(message)
        self._unsent.append(message)

    def give_up(self) -> int:
        """Forget messages whose token is still out; those before them are delivered. Returns where the stream ends."""
        end = next((message.start for message in self._messages if message.token is not None), self._end)
        while self._unsent and self._unsent[-1].start >= end:
            self._unsent.pop()
        self._messages = deque(message for message in self._messages if message.end <= end)
        self._lost = deque(lost for lost in self._lost if lost.offset < end)
        self._sent = [run for run in self._sent if run.offset < end]
        self.num_under_way = sum(run.num_packets for run in self._sent)
        self._end = end
        return end

    @property
    def delivered(self) -> bool:
        """Whether the peer has acknowledged everything."""
        return not self._messages

    @property
    def unfinished(self) -> bool:
        """Whether anything is under way, lost or not yet sent."""
        return bool(self._sent or self._unsent or self._lost)

    @property
    def first_pending(self) -> bytes | None:
        """The frame header of the first message whose token has not completed."""
        return next((message.header for message in self._messages if message.token is not None), None)

    @property
    def unacknowledged_bytes(self) -> int:
        """Posted and not known to have arrived without a gap."""
        return self._end - self._acknowledged.prefix

    # --- what has come ------------------------------------------------------------------------------------------

    def on_acknowledged(self, ranges: Sequence[tuple[int, int]], largest: int) -> Taken | None:
        """These numbers (first and last of each range, falling) have arrived. None: nothing of it is news."""
        self._largest_acknowledged = max(self._largest_acknowledged, largest)
        rising = ranges[::-1]
        kept: list[Run] = []
        newest: Run | None = None
        num_packets, index, holds_largest, app_limited = 0, 0, False, False
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
                self.delivered_bytes += self._acknowledged.add(taken.offset, taken.offset + taken.num_bytes)
                num_packets += taken.num_packets
                newest, holds_largest, app_limited = (
                    run,
                    holds_largest or last == largest,
                    app_limited or run.after_rest,
                )
                at = last + 1
                look += 1
            if at < end:
                kept.append(self._part(run, at, end))
        if newest is None:
            return None
        self._sent[:split] = kept
        self.num_under_way -= num_packets
        prefix = self._acknowledged.prefix
        while self._messages and self._messages[0].end <= prefix:
            token = self._messages.popleft().token
            if token is not None:
                self._completions.append(token)
        return Taken(newest, num_packets, holds_largest, app_limited)

    def _part(self, run: Run, first: int, end: int) -> Run:
        """Packets first..end-1 of a run."""
        if first == run.first and end == run.first + run.num_packets:
            return run
        offset = run.offset + (first - run.first) * self.packet_bytes
        num_bytes = min((end - first) * self.packet_bytes, run.offset + run.num_bytes - offset)
        return run._replace(first=first, num_packets=end - first, offset=offset, num_bytes=num_bytes)

    def detect_loss(self, patience_s: float, now_s: float) -> bool:
        """RFC 9002, 6.1: three later packets were acknowledged, or any later one and it is so long ago. Returns whether
        any was lost."""
        largest = self._largest_acknowledged
        kept: list[Run] = []
        self.loss_s = None
        split = len(self._sent)
        any_lost = False
        for position, run in enumerate(self._sent):
            if run.first > largest:
                split = position
                break
            lost_end = run.first + run.num_packets
            if run.sent_s + patience_s > now_s:
                lost_end = max(run.first, min(lost_end, largest - PACKET_THRESHOLD + 1))
            if lost_end > run.first:
                lost = self._part(run, run.first, lost_end)
                self.num_under_way -= lost.num_packets
                self._lost.append(Piece(lost.message, lost.offset, lost.offset + lost.num_bytes))
                any_lost = True
            if lost_end < run.first + run.num_packets:
                kept.append(self._part(run, lost_end, run.first + run.num_packets))
                due_s = run.sent_s + patience_s
                self.loss_s = due_s if self.loss_s is None else min(self.loss_s, due_s)
        self._sent[:split] = kept
        return any_lost

    # --- what to send -------------------------------------------------------------------------------------------

    def wanted(self) -> Piece | None:
        """What should travel next; it is not taken yet."""
        while self._lost:
            piece = self._lost[0]
            if self._acknowledged.covers(piece.offset, piece.end) or piece.end <= self._acknowledged.prefix:
                self._lost.popleft()
                continue
            return piece
        if self._unsent:
            message = self._unsent[0]
            offset = self._next_offset if self._next_offset > message.start else message.start
            end = message.end
            if self.limit < end:
                end = self.limit
                end = offset + max(0, end - offset) // self.packet_bytes * self.packet_bytes
            if end > offset:
                return Piece(message, offset, end)
        return None

    def take(self, wanted: Piece, max_packets: int, now_s: float, *, room: int, after_rest: bool) -> Run:
        """At most so many packets of what `wanted` has just said, as sent now; of `room` that there was."""
        message, offset, end = wanted
        finish = min(end, offset + max_packets * self.packet_bytes)
        num_packets = -(-(finish - offset) // self.packet_bytes)
        if self._lost:
            self.retransmitted_bytes += finish - offset
            if finish < end:
                self._lost[0] = Piece(message, finish, end)
            else:
                self._lost.popleft()
        else:
            self.payload_bytes += finish - offset
            self._next_offset = finish
            if finish == message.end:
                self._unsent.popleft()
        # A few packets after a rest say nothing of the network, however many such bursts an interval holds.
        is_long = finish - self._busy_from >= FEW_PACKETS * self.packet_bytes
        saturated = is_long and (room <= num_packets or self.wanted() is not None)
        run = Run(message, self.next_number, num_packets, offset, finish - offset, now_s, after_rest, saturated)
        self.next_number += num_packets
        self._sent.append(run)
        self.num_under_way += num_packets
        return run

    def take_back(self, run: Run, num_sent: int) -> None:
        """Of the run that `take` has just given only the first packets were sent."""
        assert self._sent[-1] is run
        self._sent.pop()
        if num_sent:
            self._sent.append(self._part(run, run.first, run.first + num_sent))
        back = self._part(run, run.first + num_sent, run.first + run.num_packets)
        self.num_under_way -= back.num_packets
        self._lost.appendleft(Piece(back.message, back.offset, back.offset + back.num_bytes))
        self.retransmitted_bytes -= back.num_bytes

    def repeat_oldest(self, num_packets: int) -> bool:
        """So many packets of what is under way longest are wanted again. Returns False when nothing is."""
        while self._sent and self._acknowledged.covers(
            self._sent[0].offset, self._sent[0].offset + self._sent[0].num_bytes
        ):
            self.num_under_way -= self._sent.pop(0).num_packets  # another copy of it has arrived
        if not self._sent:
            return False
        run = self._sent[0]
        end = min(run.offset + run.num_bytes, run.offset + num_packets * self.packet_bytes)
        self._lost.appendleft(Piece(run.message, run.offset, end))
        return True
