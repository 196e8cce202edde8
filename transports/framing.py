"""What goes before each message on a byte stream, and how a disagreement about it is told.

    offset  size  field
    0       4     magic, `ina1`
    4       4     group        hash of the group's name
    8       4     sequence     of the operation, modulo 2^32
    12      4     phase        of the message within the operation
    16      8     count        elements that follow
    24      1     operation    index in OPERATIONS
    25      1     dtype        index in DTYPES
    26      2     argument     index in REDUCTIONS; of a broadcast, its root
    28      4     check        CRC-32 of the 28 bytes before it

All little-endian. Both sides know what comes next, so a receiver packs the header it expects and compares bytes.
"""

import struct
import zlib
from typing import Final

from transports.channels.base import Header
from transports.errors import FrameMismatchError, PeerLostError

OPERATIONS: Final = (
    "goodbye",  # the last message of a member that leaves; its sequence: the last operation it finished
    "hello",  # the first message on a connection; its phase: the sender's rank, its count: the group's size
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "barrier",
    "point_to_point",
)
REDUCTIONS: Final = ("sum", "product", "min", "max", "avg")
DTYPES: Final = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
)
DTYPE_BYTES: Final = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1)
GOODBYE: Final = OPERATIONS.index("goodbye")
HELLO: Final = OPERATIONS.index("hello")
POINT_TO_POINT: Final = OPERATIONS.index("point_to_point")

_MAGIC: Final = b"ina1"
_REDUCING: Final = frozenset(map(OPERATIONS.index, ("all_reduce", "reduce_scatter")))
_BROADCAST: Final = OPERATIONS.index("broadcast")
_FIELDS: Final = struct.Struct("<4sIIIQBBH")
_CHECK: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size
_MASK: Final = 0xFFFF_FFFF


def group_id(name: str) -> int:
    """The number that stands for a group's name in headers."""
    return zlib.crc32(name.encode())


def pack(header: Header) -> bytes:
    """The HEADER_BYTES that go before a message's payload."""
    fields = _FIELDS.pack(
        _MAGIC,
        header.group,
        header.sequence & _MASK,
        header.phase & _MASK,
        header.count,
        header.operation,
        header.dtype,
        header.argument,
    )
    return fields + _CHECK.pack(zlib.crc32(fields))


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """The header in the first HEADER_BYTES. Raises FrameMismatchError for anything :func:`pack` does not make."""
    magic, group, sequence, phase, count, operation, dtype, argument = _FIELDS.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _FIELDS.size)
    if magic != _MAGIC or check != zlib.crc32(data[: _FIELDS.size]):
        raise FrameMismatchError(f"not a frame header: {bytes(data[:HEADER_BYTES]).hex()}")
    if operation >= len(OPERATIONS) or dtype >= len(DTYPES):
        raise FrameMismatchError(f"unknown operation {operation} or element type {dtype}: another version of the peer?")
    if operation in _REDUCING and argument >= len(REDUCTIONS):
        raise FrameMismatchError(f"unknown reduction {argument}: another version of the peer?")
    return Header(group, sequence, operation, dtype, count, phase, argument)


def describe(header: Header) -> str:
    """`all_reduce (sum) #7, message 3: 512 float32`."""
    asked = ""
    if header.operation in _REDUCING:
        asked = f" ({REDUCTIONS[header.argument]})"
    elif header.operation == _BROADCAST:
        asked = f" (from rank {header.argument})"
    what = "tag" if header.operation == POINT_TO_POINT else "message"
    return (
        f"{OPERATIONS[header.operation]}{asked} #{header.sequence}, {what} {header.phase}: "
        f"{header.count} {DTYPES[header.dtype]}"
    )


def mismatch(*, sender: int, sent: Header, receiver: int, expected: Header) -> FrameMismatchError:
    """The error that names both sides."""
    groups = "" if sent.group == expected.group else f" (groups {sent.group:#x} and {expected.group:#x} differ)"
    return FrameMismatchError(
        f"rank {sender} sends {describe(sent)}; rank {receiver} expects {describe(expected)}{groups}"
    )


def left(rank: int, after: int) -> PeerLostError:
    """The error for a peer that took its leave, but too early for us."""
    return PeerLostError(rank, f"it closed the group after operation #{after}")
