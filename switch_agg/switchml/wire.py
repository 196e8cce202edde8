"""The datagrams between p4app-switchML's clients and its switch. Pure.

::

     0                   1                   2                   3
     0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    +-------+-+-----+---------------+-------------------------------+
    |  type |-| size|  job_number   |              tsi              |
    +-------+-+-----+---------------+-+-+---------------------------+
    |              tsi              |S|-|           slot            |
    +---------------+---------------+-+-+---------------------------+
    |      e0       |      e1       |  64 or 256 big-endian int32 ...
    +---------------+---------------+

After dev_root/p4/headers.p4, parsers.p4, udp_receiver.p4 and udp_sender.p4 at commit ee1d1bb. The program reads neither
the type, nor the bits marked `-` (bit 14 of pool_index is one), and sends type 1 and zeros. tsi and job_number are the
client's own: the switch returns those of the packet that it answers.
"""

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agg.errors import WireError
from switch_agg.wire import ETHERNET_IP_UDP_BYTES

HEADER: Final = struct.Struct(">BBIHbb")
"""Type and size; job_number; tsi; pool_index; e0; e1."""
NUM_ELEMENTS: Final = {1: 64, 3: 256}
"""By the header's size code, which is that of `enum ibv_mtu`. The program drops 0 and 2 (next_step_selector.py)."""
MAX_DATAGRAM_BYTES: Final = HEADER.size + 4 * max(NUM_ELEMENTS.values())
TYPE: Final = 1
"""No kind of our own datagrams, which begin alike and come to the same ports."""
_WIRE_ELEMENT: Final = np.dtype(">i4")


class Packet(NamedTuple):
    """One datagram's contents, either way."""

    size: int
    """A key of NUM_ELEMENTS."""
    job_number: int
    tsi: int
    pool_set: int
    """0 or 1: which half of the slot, and so which copy of its registers."""
    slot: int
    exponents: tuple[int, int]
    elements: npt.NDArray[np.int32]
    """Host byte order."""

    def encode(self) -> bytes:
        """The datagram."""
        first = TYPE << 4 | self.size
        pool_index = self.pool_set << 15 | self.slot
        head = HEADER.pack(first, self.job_number, self.tsi, pool_index, *self.exponents)
        return head + self.elements.astype(_WIRE_ELEMENT).tobytes()


def frame_bytes(num_elements: int) -> int:
    """What a datagram occupies on Ethernet, without FCS: 308 for 64 elements, 1076 for 256."""
    return ETHERNET_IP_UDP_BYTES + HEADER.size + 4 * num_elements


def decode(data: bytes) -> Packet:
    """A datagram's contents. Raises WireError, whose `reason` names the counter that counts it."""
    if len(data) < HEADER.size:
        raise WireError("bad_length", f"{len(data)} bytes are fewer than a header's {HEADER.size}")
    first, job_number, tsi, pool_index, e0, e1 = HEADER.unpack_from(data)
    size = first & 7
    num_elements = NUM_ELEMENTS.get(size)
    if num_elements is None:
        raise WireError("bad_size", f"size {size} is not one of {', '.join(map(str, NUM_ELEMENTS))}")
    if len(data) != HEADER.size + 4 * num_elements:
        raise WireError("bad_length", f"{len(data)} bytes cannot carry {num_elements} elements")
    elements = np.frombuffer(data, _WIRE_ELEMENT, offset=HEADER.size).astype(np.int32)
    return Packet(size, job_number, tsi, pool_index >> 15, pool_index & 0x3FFF, (e0, e1), elements)
