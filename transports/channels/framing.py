"""What goes before each message on a byte stream, and how a disagreement about it is reported.

    offset  size  field
    0       4     magic, `ina1`
    4       4     group        hash of the group's name
    8       4     sequence     of the operation, modulo 2^32
    12      4     phase        of the message within the operation
    16      8     count        elements that follow
    24      1     operation    index in OPERATIONS
    25      1     dtype        index in DTYPES
    26      2     argument     8 x root + index in REDUCTIONS, where the operation has them
    28      8     total        elements of the whole operation
    36      4     check        CRC-32 of the 36 bytes before it

All little-endian. Both sides know what comes next, so a receiver packs the header it expects and compares bytes.
"""

import struct
import zlib
from typing import Final, NamedTuple

from transports.channels.base import Header
from transports.errors import FrameMismatchError, PeerLostError

OPERATIONS: Final = (
    "goodbye",  # the last message of a member that leaves: see Farewell; its count: 1 + the rank that it has lost, or 0
    "hello",  # the first message on a connection; its phase: the sender's rank, its count: the group's size
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "barrier",
    "point_to_point",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
)
REDUCTIONS: Final = ("sum", "product", "min", "max", "avg", "band", "bor", "bxor")
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
STALENESS_BYTES: Final = 8
"""Of the message that an asynchronous parameter server sends beside each shard
(`transports/execution/asynchronous.py`)."""

_MAGIC: Final = b"ina1"
_REDUCING: Final = frozenset(map(OPERATIONS.index, ("all_reduce", "reduce_scatter", "reduce")))
_ROOTED: Final = {
    OPERATIONS.index(name): where
    for name, where in {"broadcast": "from", "reduce": "to", "gather": "to", "scatter": "from"}.items()
}
MAX_ROOT: Final = 0xFFFF // len(REDUCTIONS)
_FIELDS: Final = struct.Struct("<4sIIIQBBHQ")
_CHECK: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size
_MASK: Final = 0xFFFF_FFFF


def group_id(name: str) -> int:
    """The number that stands for a group's name in headers."""
    return zlib.crc32(name.encode())


def argument(operation: int, reduction: int, root: int) -> int:
    """The field of that name, from indices in OPERATIONS and REDUCTIONS and a rank."""
    assert root <= MAX_ROOT, f"a header names roots up to {MAX_ROOT}"
    return (root * len(REDUCTIONS) if operation in _ROOTED else 0) + (reduction if operation in _REDUCING else 0)


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
        header.total,
    )
    return fields + _CHECK.pack(zlib.crc32(fields))


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """The header in the first HEADER_BYTES. Raises FrameMismatchError for anything :func:`pack` does not make."""
    magic, group, sequence, phase, count, operation, dtype, argument, total = _FIELDS.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _FIELDS.size)
    if magic != _MAGIC or check != zlib.crc32(data[: _FIELDS.size]):
        raise FrameMismatchError(f"not a frame header: {bytes(data[:HEADER_BYTES]).hex()}")
    if operation >= len(OPERATIONS) or dtype >= len(DTYPES):
        raise FrameMismatchError(f"unknown operation {operation} or element type {dtype}: another version of the peer?")
    if operation in _REDUCING and operation not in _ROOTED and argument >= len(REDUCTIONS):
        raise FrameMismatchError(f"unknown reduction {argument}: another version of the peer?")
    return Header(group, sequence, operation, dtype, count, phase, argument, total)


def describe(header: Header) -> str:
    """`all_reduce (sum) #7 of 4096 float32 (16384 B), message 3: 512 float32`."""
    root, reduction = divmod(header.argument, len(REDUCTIONS))
    words = [REDUCTIONS[reduction]] if header.operation in _REDUCING else []
    if header.operation in _ROOTED:
        words.append(f"{_ROOTED[header.operation]} rank {root}")
    requested = f" ({' '.join(words)})" if words else ""
    what = "tag" if header.operation == POINT_TO_POINT else "message"
    dtype = DTYPES[header.dtype]
    whole = f" of {header.total} {dtype} ({header.total * DTYPE_BYTES[header.dtype]} B)" if header.total else ""
    message = f"{what} {header.phase}: {header.count} {dtype}"
    return f"{OPERATIONS[header.operation]}{requested} #{header.sequence}{whole}, {message}"


def mismatch(*, sender: int, sent: Header, receiver: int, expected: Header) -> FrameMismatchError:
    """The error that names both sides."""
    groups = "" if sent.group == expected.group else f" (groups {sent.group:#x} and {expected.group:#x} differ)"
    return FrameMismatchError(
        f"rank {sender} sends {describe(sent)}; rank {receiver} expects {describe(expected)}{groups}"
    )


class Farewell(NamedTuple):
    """What a member that leaves says last."""

    after: int
    """The last operation that it has finished."""
    lost: int | None = None
    """The rank that it has lost, if that is why."""

    @classmethod
    def because(cls, after: int, error: BaseException | None) -> "Farewell":
        """Of a member that leaves with that error. A timeout blames nobody here: who was waited for may itself have
        waited for another."""
        return cls(after, error.peer if isinstance(error, PeerLostError) else None)

    @classmethod
    def of(cls, goodbye: Header) -> "Farewell":
        """What a message says whose operation is GOODBYE."""
        return cls(goodbye.sequence, goodbye.count - 1 if goodbye.count else None)

    def pack(self, group: str) -> bytes:
        """The message that says so to members of the group of that name."""
        count = 0 if self.lost is None else self.lost + 1
        return pack(Header(group_id(group), self.after, GOODBYE, 0, count, 0))


def require_finished(rank: int, farewell: Farewell, to: int) -> None:
    """Nothing, where a peer from which rank `to` needs nothing more took its leave because all is done. Raises
    PeerLostError where it left because it had lost another."""
    if farewell.lost is not None:
        raise left(rank, farewell, to)


def left(rank: int, farewell: Farewell, to: int) -> PeerLostError:
    """The error at rank `to` for a peer that took its leave, but too early: it names who was lost first."""
    closed = f"it closed the group after operation #{farewell.after}"
    if farewell.lost is None or farewell.lost == rank:
        return PeerLostError(rank, closed)
    if farewell.lost == to:
        return PeerLostError(rank, f"{closed}, having lost this rank")
    return PeerLostError(
        farewell.lost, f"rank {rank} has lost it, and closed the group after operation #{farewell.after}"
    )
