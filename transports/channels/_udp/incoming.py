"""The stream that comes in over a UDP connection: what is expected, what has come, what to acknowledge. Pure.

A receiver allows as much as it has posted, and a little that it puts aside. Payload goes straight to the message's own
memory.
"""

from collections import deque
from typing import Final, NamedTuple

from transports.channels._udp.ranges import Ranges
from transports.channels._udp.wire import ASIDE_BYTES, MAX_RANGES, Kind, Packet, pack, pack_acknowledged, whole
from transports.channels.framing import HEADER_BYTES

MAX_ACKNOWLEDGEMENT_DELAY_S: Final = 1e-3
PACKETS_PER_ACKNOWLEDGEMENT: Final = 16


class Message:
    """One that is expected, or begun."""

    __slots__ = ("end", "expected", "header", "start", "token", "view")

    def __init__(self, start: int, expected: bytes, view: memoryview, token: int) -> None:
        self.start, self.end = start, start + HEADER_BYTES + len(view)
        self.expected, self.view, self.token = expected, view, token
        self.header = bytearray(HEADER_BYTES)


class Target(NamedTuple):
    """Where bytes of the stream belong."""

    start: int
    end: int
    view: memoryview


class Arrival(NamedTuple):
    """Packets with consecutive numbers and consecutive bytes that have come one after another."""

    number: int
    """Of the first, modulo 2^32."""
    num_packets: int
    offset: int
    num_bytes: int
    marked: bool
    arrived_s: float
    """When the kernel took the newest in."""
    train_bytes: int
    """The last of them, which arrived together."""


class Incoming:
    """The stream from the peer. Tokens of messages that are complete go to `completions`."""

    def __init__(self, completions: list[int], now_s: float) -> None:
        self._completions = completions
        self._messages: deque[Message] = deque()
        self._posted_end = 0
        self._aside = bytearray(ASIDE_BYTES)
        self._numbers = Ranges()
        self._arrived_s = now_s
        self._arrived_end = 0
        self._train_bytes = 0
        self._marks = 0
        self._allowed = ASIDE_BYTES
        self._num_unacknowledged = 0
        self.received = Ranges()
        self.acknowledge_s: float | None = None
        """When an acknowledgement is due; None: nothing has come since the last one."""
        self.disagreement: tuple[bytes, bytes] | None = None
        """The frame header that came and the one that was expected."""
        self.version = 0
        """Changes when `targets` have been added to."""
        self.payload_bytes = 0
        """Each counted once, however often it came."""

    # --- requests to it -----------------------------------------------------------------------------------------

    def expect(self, header: bytes, view: memoryview, token: int) -> None:
        """The next message goes here. Bytes of it that were put aside are moved."""
        message = Message(self._posted_end, header, view, token)
        self._messages.append(message)
        self._posted_end = message.end
        self.version += 1
        here = min(message.end, self._arrived_end)
        if here > message.start:
            for target in _targets_of(message):
                self._take_aside(target, here)
            self._complete()
        if self._posted_end + ASIDE_BYTES - self._allowed >= ASIDE_BYTES // 4:
            self.acknowledge_s = 0.0  # the sender may be waiting for leave to go on

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

    @property
    def expecting(self) -> bool:
        """Whether a message is expected that has not come."""
        return bool(self._messages)

    @property
    def missing_bytes(self) -> int:
        """Of the message that comes next, what has not come; 0 where none is expected."""
        return self._messages[0].end - self.received.prefix if self._messages else 0

    @property
    def first_expected(self) -> bytes | None:
        """The frame header of the message that comes next."""
        return self._messages[0].expected if self._messages else None

    # --- what has come ------------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        """Where the bytes of the stream go that may come now."""
        found = [target for message in self._messages for target in _targets_of(message)]
        start, end = self._posted_end, self._posted_end + ASIDE_BYTES
        fold = start - start % ASIDE_BYTES + ASIDE_BYTES
        aside = memoryview(self._aside)
        found.append(Target(start, fold, aside[start % ASIDE_BYTES :]))
        if fold < end:
            found.append(Target(fold, end, aside[: end - fold]))
        return found

    def place(self, packet: Packet) -> bool:
        """Put its bytes where they belong; False: they belong nowhere."""
        start, end = packet.offset, packet.offset + len(packet.body)
        if end <= start or end > self._posted_end + ASIDE_BYTES:
            return False
        if start >= self.received.prefix:
            for target in self.targets():
                begin, finish = max(start, target.start), min(end, target.end)
                if begin < finish:
                    there = target.view[begin - target.start : finish - target.start]
                    there[:] = packet.body[begin - start : finish - start]
        return True

    def on_packets(self, arrival: Arrival, now_s: float) -> None:
        """They have come, and their bytes lie where `targets` says."""
        largest = self._numbers.ends[-1] if self._numbers.ends else 0
        first, num_packets = whole(arrival.number, largest), arrival.num_packets
        num_new = self._numbers.add(first, first + num_packets)
        self._numbers.keep_last(4 * MAX_RANGES)
        if first + num_packets > largest:
            self._arrived_s, self._train_bytes = arrival.arrived_s, arrival.train_bytes
        if arrival.marked:
            self._marks += num_packets
        self._num_unacknowledged += num_packets
        prefix, end = self.received.prefix, arrival.offset + arrival.num_bytes
        self.payload_bytes += self.received.add(arrival.offset, end)
        self._arrived_end = max(self._arrived_end, end)
        disordered = first != largest or num_new < num_packets
        completed = self._complete() if self.received.prefix > prefix else False
        many = self._num_unacknowledged >= PACKETS_PER_ACKNOWLEDGEMENT
        due_s = 0.0 if disordered or arrival.marked or completed or many else now_s + MAX_ACKNOWLEDGEMENT_DELAY_S
        self.acknowledge_s = due_s if self.acknowledge_s is None else min(due_s, self.acknowledge_s)

    def _complete(self) -> bool:
        prefix, completed = self.received.prefix, False
        while self._messages and prefix >= self._messages[0].start + HEADER_BYTES:
            message = self._messages[0]
            if message.header != message.expected:
                self.disagreement = (bytes(message.header), message.expected)
                return True
            if prefix < message.end:
                break
            self._completions.append(message.token)
            self._messages.popleft()
            completed = True
        return completed

    def acknowledgement(self, connection: int, now_s: float) -> bytes:
        """Says what has come, and how much more may; to that connection."""
        starts, ends = self._numbers.starts[: -MAX_RANGES - 1 : -1], self._numbers.ends[: -MAX_RANGES - 1 : -1]
        ranges = [(start, end - 1) for start, end in zip(starts, ends, strict=True)]
        self._allowed = self._posted_end + ASIDE_BYTES
        self._num_unacknowledged = 0
        self.acknowledge_s = None
        largest = ranges[0][1] if ranges else 0
        body = pack_acknowledged(
            delay_s=max(0.0, now_s - self._arrived_s),
            arrived_s=self._arrived_s,
            train_bytes=self._train_bytes,
            marks=self._marks,
            ranges=ranges,
        )
        return pack(connection, largest, Kind.ACKNOWLEDGEMENT, self._allowed, body)


def _targets_of(message: Message) -> tuple[Target, Target]:
    payload = message.start + HEADER_BYTES
    return Target(message.start, payload, memoryview(message.header)), Target(payload, message.end, message.view)
