"""The datagrams between workers and aggregator: p4app-switchML's UDP format with an epoch of 32 bits behind it. Pure.

::

     0                   1                   2                   3
     0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    +-------+-+-----+-------+-------+-------------------------------+
    | kind  |P|size |  job  |format |            chunk              |   8 bytes: p4app-switchML calls the second byte
    +-------+-+-----+-------+-------+-+-+---------------------------+   job_number, `chunk` tsi, V and slot pool_index
    |            chunk              |V|0|           slot            |
    +---------------+---------------+-+-+---------------------------+
    |   exponent    | contributions |             epoch             |   2 bytes: e0 and e1; 4 bytes of ours
    +---------------+---------------+-------------------------------+
    |             epoch             |  32 << size big-endian two's-
    +-------------------------------+  complement 32-bit elements ...

UDP destination port 0xBEE0 to 0xBEEF towards the aggregator, which answers from that port. Sizes 1 (64 elements) and 3
(256) are the original's; 4 to 6 (512, 1024, 2048) need jumbo frames, and 0 and 2 complete the row. The kinds are ours:
see :class:`Kind`. P marks a partial result and `contributions` then says of how many workers. `chunk` is
opaque to the original; here it counts up within an epoch, which keeps sums right when packets are reordered, and no two
epochs have the same number, which keeps them right when packets come late (docs/protocol.md).

Kind 1 is the original's own datagram, which :mod:`switch_agg.switchml.wire` reads; here it means nothing.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agg.errors import WireError

PORTS: Final = range(0xBEE0, 0xBEF0)
"""UDP destination ports of an aggregator."""
FORMAT: Final = 2
"""Of the datagrams. The first had epochs of four bits where this number stands, and 10 bytes of header."""
HEADER: Final = struct.Struct(">BBIHbbI")
"""Kind, P and size; job and format; chunk; version and slot; exponent; contributions; epoch."""
SIZES: Final = {code: 32 << code for code in range(7)}
"""Elements of a chunk by the header's size code."""
MAX_SLOTS: Final = 1 << 14
"""Of each version."""
MAX_JOBS: Final = 16
NUM_EPOCHS: Final = 1 << 32
NUM_JOINS: Final = 1 << 7
"""Joins of a worker are distinguished modulo this."""
ETHERNET_IP_UDP_BYTES: Final = 14 + 20 + 8
EXPONENT_ZERO: Final = -128
"""Of a block of zeros."""
EXPONENT_NOT_FINITE: Final = 127
"""Of a block with an infinity or a NaN in it; the maximum over workers keeps it."""

Elements = npt.NDArray[np.int32]
WIRE_ELEMENT: Final = np.dtype(">i4")


class Kind(IntEnum):
    """What a datagram is. To the aggregator, and what it answers."""

    JOIN = 2
    """`slot` is the worker's index, `chunk` a number that differs after every start, `contributions` counts the joins
    since then, so that the answer to an earlier one is known. The answer has both, and the epoch."""
    LEAVE = 3
    """The worker has all its results. Answered by LEAVE."""
    RESET = 4
    """End that epoch. As an answer, also to data of an old epoch: this is the epoch now."""
    PROBE = 5
    """Answered by PROBE with the same chunk number: is there an aggregator, and how far away?"""
    SATURATED = 6
    """Only an answer: a result in which at least one element left the range of 32 bits and was clipped."""
    DATA_16 = 7
    """As DATA_32, with two 16-bit integers in each element: see switch_agg.payload."""
    DATA_8 = 8
    """As DATA_32, with four 8-bit integers in each element."""
    DATA_32 = 9
    """A contribution; the result."""


CARRYING: Final = frozenset({Kind.SATURATED, Kind.DATA_16, Kind.DATA_8, Kind.DATA_32})
"""The kinds that have elements."""


class Packet(NamedTuple):
    """One datagram's contents."""

    kind: Kind
    job: int
    """0 to 15."""
    epoch: int
    """0 to 2^32 - 1."""
    chunk: int
    """0 to 2^32 - 1."""
    slot: int = 0
    version: int = 0
    """Which of the slot's two halves."""
    exponent: int = EXPONENT_ZERO
    """Block exponent: every magnitude in the block is below two to this power."""
    contributions: int = 0
    """In a partial result. Of a JOIN: which of the worker's it is."""
    partial: bool = False
    elements: Elements | None = None
    """Of the kinds in CARRYING: host byte order, read-only."""

    def encode(self) -> bytes:
        """The datagram. Raises AssertionError for what cannot be a datagram."""
        size = 0
        if self.elements is not None:
            size = size_code(len(self.elements))
        fields = (self.chunk, self.version << 15 | self.slot, self.exponent, self.contributions)
        first = self.kind << 4 | self.partial << 3 | size
        head = HEADER.pack(first, self.job << 4 | FORMAT, *fields, self.epoch)
        return head if self.elements is None else head + self.elements.astype(WIRE_ELEMENT).tobytes()


def decode(data: bytes | memoryview) -> Packet:
    """A datagram's contents. Raises WireError, whose `reason` names the counter that counts it."""
    if len(data) < HEADER.size:
        raise WireError("bad_length", f"{len(data)} bytes are fewer than a header's {HEADER.size}")
    first, job, chunk, pool, exponent, contributions, epoch = HEADER.unpack_from(data)
    try:
        kind = Kind(first >> 4)
    except ValueError:
        raise WireError("bad_kind", f"kind {first >> 4} means nothing") from None
    if job & 15 != FORMAT:
        raise WireError("bad_format", f"a datagram of format {job & 15}, and this is {FORMAT}")
    elements = None
    if kind in CARRYING:
        num_elements = SIZES.get(first & 7)
        if num_elements is None:
            raise WireError("bad_size", f"size code {first & 7} means nothing")
        if len(data) != HEADER.size + 4 * num_elements:
            raise WireError("bad_length", f"{len(data)} bytes cannot carry {num_elements} elements")
        elements = np.frombuffer(data, WIRE_ELEMENT, offset=HEADER.size).astype(np.int32)
    elif len(data) != HEADER.size:
        raise WireError("bad_length", f"{len(data)} bytes where a header's {HEADER.size} are all")
    if pool & 1 << 14:
        raise WireError("bad_slot", "the bit between version and slot is set")
    return Packet(
        kind=kind,
        job=job >> 4,
        epoch=epoch,
        chunk=chunk,
        slot=pool & MAX_SLOTS - 1,
        version=pool >> 15,
        exponent=exponent,
        contributions=contributions,
        partial=bool(first & 8),
        elements=elements,
    )


def size_code(num_elements: int) -> int:
    """The header's code. Raises ValueError for a number that has none."""
    for code, known in SIZES.items():
        if known == num_elements:
            return code
    raise ValueError(f"{num_elements} elements fit no chunk; allowed: {', '.join(map(str, SIZES.values()))}")


def frame_bytes(num_elements: int) -> int:
    """What a chunk's datagram occupies on Ethernet, without FCS: 312 for 64 elements, 1080 for 256."""
    return ETHERNET_IP_UDP_BYTES + HEADER.size + 4 * num_elements


def goodput_fraction(num_elements: int) -> float:
    """Payload per byte that a shaper counts: 4N / (56 + 4N)."""
    return 4 * num_elements / frame_bytes(num_elements)


def is_newer(number: int, than: int) -> bool:
    """Whether one chunk or epoch follows another, around the wrap of 32 bits (RFC 1982)."""
    return 0 < (number - than) & 0xFFFFFFFF < 1 << 31
