"""The datagrams of the UDP channel, bit by bit, which wire.h writes and reads.

    offset  size  field
    0       4     check        sum modulo 2^32 of the datagram's other words of 32 bits, zeros added behind
    4       4     connection   the number that the receiving end chose and published
    8       4     number       of the packet, modulo 2^32; of an acknowledgement: the largest one received
    12      1     kind
    13      1     zero
    14      2     length       of what follows the header
    16      8     offset       of the first byte in the stream; of an acknowledgement: the stream may go on up to here

All little-endian. UDP's own checksum is left to the network card on most machines; the sum here costs next to nothing
while the bytes are copied and covers what happens to them in memory as well. The packets of data carry exactly what
TCP's carry at the same MTU, so that both have the same bound.

An acknowledgement goes on with its delay and the time at which the newest data arrived, by the receiver's clock, both
in microseconds modulo 2^32, the bytes that the kernel took in at that one time, the congestion marks seen (4 bytes
each), the number of ranges (2 bytes), and for each range, from the largest number down, the unreceived and the
received packets (2 each).

A CLOSE says in its number after which operation its sender leaves and in its offset where the stream from it ends. It
goes on with 1 + the rank that its sender has lost, or 0 (4 bytes), and how much of the stream to its sender has come
without a gap (8): nothing of that waits for an acknowledgement any more, which may have been lost or overtaken.
"""

from typing import Final

HEADER_BYTES: Final = 24
ACKNOWLEDGEMENT_BYTES: Final = 18
"""Behind the header of an acknowledgement, without its ranges."""
RANGE_BYTES: Final = 4
MAX_RANGES: Final = 16
MAX_LENGTH: Final = 8972 - HEADER_BYTES
"""What fits a packet of MTU 9000."""
ASIDE_BYTES: Final = 2**20
"""What a receiver keeps of messages that it has not posted yet; both ends count on it."""
IP_UDP_BYTES: Final = 20 + 8
ETHERNET_BYTES: Final = 14
OVERHEAD_BYTES: Final = ETHERNET_BYTES + IP_UDP_BYTES + HEADER_BYTES
