"""The datagrams of the UDP channel, written and read once more from their description (_udp/wire.py)."""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from transports.channels._udp.wire import MAX_RANGES
from transports.errors import FrameMismatchError

HEADER: Final = struct.Struct("<IIIBBHQ")
ACKNOWLEDGEMENT: Final = struct.Struct("<IIIIH")
RANGE: Final = struct.Struct("<HH")
CLOSE: Final = struct.Struct("<IQ")
"""1 + the rank that the sender has lost, or 0, and how much of the stream to it has come without a gap."""
_PAIRS: Final = tuple(struct.Struct(f"<{2 * num_ranges}H") for num_ranges in range(MAX_RANGES + 1))
_SHORT_BYTES: Final = 256
"""Up to here numpy costs more than it saves."""
_MASK: Final = 0xFFFF_FFFF
_MAX_16: Final = 0xFFFF


class Kind(IntEnum):
    """What a datagram is."""

    DATA = 1
    ACKNOWLEDGEMENT = 2
    PING = 3
    """Asks for an acknowledgement."""
    CLOSE = 4
    """The sender leaves; number: the last operation that it finished, offset: where its stream ends."""
    LEFT = 5
    """The answer to that."""
    UNKNOWN_CONNECTION = 6
    """Nobody here knows the connection that this number names: whoever knew it has died or begun anew."""


class Packet(NamedTuple):
    """A datagram, read."""

    connection: int
    number: int
    kind: Kind
    offset: int
    body: bytes | memoryview


class Acknowledged(NamedTuple):
    """The body of an acknowledgement."""

    delay_s: float
    """From the arrival of the newest data to the acknowledgement."""
    arrived_us: int
    """When that was, by the receiver's clock, modulo 2^32."""
    train_bytes: int
    """What arrived with it at once, as far as the kernel can tell."""
    marks: int
    ranges: tuple[tuple[int, int], ...]
    """First and last number of each, falling."""


def check(datagram: bytes | bytearray | memoryview) -> int:
    """The sum over all but the first word."""
    padded = bytes(datagram) + bytes(-len(datagram) % 4)
    if len(padded) <= _SHORT_BYTES:
        words = memoryview(padded).cast("I")
        return sum(words) - words[0] & _MASK
    return int(np.frombuffer(padded, "<u4", offset=4).sum(dtype=np.uint64)) & _MASK


def pack(connection: int, number: int, kind: Kind, offset: int, body: bytes | memoryview = b"") -> bytes:
    """A datagram."""
    datagram = bytearray(HEADER.size + len(body))
    HEADER.pack_into(datagram, 0, 0, connection, number & _MASK, kind, 0, len(body), offset)
    datagram[HEADER.size :] = body
    datagram[:4] = check(datagram).to_bytes(4, "little")
    return bytes(datagram)


def unpack(datagram: bytes) -> Packet:
    """The inverse. Raises FrameMismatchError for anything that :func:`pack` does not make."""
    if len(datagram) < HEADER.size:
        raise FrameMismatchError(f"a datagram of {len(datagram)} bytes is shorter than its header")
    found, connection, number, kind, zero, length, offset = HEADER.unpack_from(datagram)
    if length != len(datagram) - HEADER.size or found != check(datagram) or zero:
        raise FrameMismatchError("a datagram is cut short or corrupted")
    try:
        return Packet(connection, number, Kind(kind), offset, memoryview(datagram)[HEADER.size :])
    except ValueError as error:
        raise FrameMismatchError(f"unknown kind of datagram {kind}: another version of the peer?") from error


def pack_acknowledged(
    *, delay_s: float, arrived_s: float, train_bytes: int, marks: int, ranges: Sequence[tuple[int, int]]
) -> bytes:
    """The body for ranges that fall; the last ones are left out when they are too many or too far away."""
    pairs: list[int] = []
    above = ranges[0][1] + 1 if ranges else 0
    for first, last in ranges[:MAX_RANGES]:
        gap, length = above - last - 1, last - first + 1
        if gap > _MAX_16:
            break
        pairs += (gap, min(length, _MAX_16))
        if length > _MAX_16:
            break
        above = first
    arrived_us = round(arrived_s * 1e6) & _MASK
    delay_us, num_ranges = min(round(delay_s * 1e6), _MASK), len(pairs) // 2
    head = ACKNOWLEDGEMENT.pack(delay_us, arrived_us, train_bytes, marks & _MASK, num_ranges)
    return head + _PAIRS[num_ranges].pack(*pairs)


def unpack_acknowledged(largest: int, body: bytes | memoryview) -> Acknowledged:
    """The inverse, the largest number in full. Raises FrameMismatchError."""
    if len(body) < ACKNOWLEDGEMENT.size:
        raise FrameMismatchError("an acknowledgement is cut short")
    delay_us, arrived_us, train_bytes, marks, num_ranges = ACKNOWLEDGEMENT.unpack_from(body)
    if len(body) != ACKNOWLEDGEMENT.size + num_ranges * RANGE.size:
        raise FrameMismatchError("an acknowledgement is cut short")
    ranges, above = [], largest + 1
    for gap, length in RANGE.iter_unpack(memoryview(body)[ACKNOWLEDGEMENT.size :]):
        last = above - gap - 1
        above = last - length + 1
        if length == 0 or above < 0:
            raise FrameMismatchError("an acknowledgement names packets that cannot be")
        ranges.append((above, last))
    return Acknowledged(delay_us * 1e-6, arrived_us, train_bytes, marks, tuple(ranges))


def whole(number: int, near: int) -> int:
    """The number, of which 32 bits are known, that is nearest to one that is known (RFC 9000, A.3)."""
    return max(0, near + ((number - near + 2**31) & _MASK) - 2**31) if near >= 2**31 else number
