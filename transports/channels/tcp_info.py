"""What the kernel counts of a TCP connection: `struct tcp_info` of linux/tcp.h."""

import socket
import struct
from dataclasses import dataclass
from typing import Final

SEGMENT_HEADERS_BYTES: Final = 14 + 20 + 20 + 12
"""Of a segment on the wire, all of a pure acknowledgement: Ethernet, IPv4, TCP, timestamps option."""
SELECTIVE_ACKNOWLEDGEMENT_BYTES: Final = 4 + 2 * 8
"""The SACK option (RFC 2018) with two blocks; beside timestamps it has one to three."""

# Offsets, stable since the fields were added (4.2, 4.6, 4.19, 5.4).
_SEGMENTS_OUT: Final = struct.Struct("=I")
_SEGMENTS_OUT_OFFSET: Final = 136
_DATA_SEGMENTS: Final = struct.Struct("=II")
_DATA_SEGMENTS_OFFSET: Final = 152
_BYTES: Final = struct.Struct("=QQ")
_BYTES_SENT_OFFSET: Final = 200
_LEAST_BYTES: Final = 216
_OUT_OF_ORDER_OFFSET: Final = 224
_READ_BYTES: Final = 228


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpInfo:
    """Since the connection was opened."""

    segments_out: int
    """All segments, those without data too."""
    data_segments_out: int
    data_segments_in: int
    """In whatever order, and what came twice, too."""
    bytes_sent: int
    """Payload, retransmissions included."""
    bytes_retransmitted: int
    out_of_order_segments_in: int = 0
    """Data that came before data sent earlier; 0 from a kernel before 5.4, which does not count it."""

    @property
    def acknowledgement_bytes_out(self) -> int:
        """Wire bytes of segments without data: acknowledgements, and one SYN. Data out of order is acknowledged at
        once, selectively."""
        num_pure = self.segments_out - self.data_segments_out
        num_selective = min(num_pure, self.out_of_order_segments_in)
        return num_pure * SEGMENT_HEADERS_BYTES + num_selective * SELECTIVE_ACKNOWLEDGEMENT_BYTES


def parse_tcp_info(data: bytes) -> TcpInfo | None:
    """The kernel's struct; None from a kernel before 4.19, which keeps no `tcpi_bytes_retrans`."""
    if len(data) < _LEAST_BYTES:
        return None
    out_of_order = 0
    if len(data) >= _READ_BYTES:
        (out_of_order,) = _SEGMENTS_OUT.unpack_from(data, _OUT_OF_ORDER_OFFSET)
    (segments_out,) = _SEGMENTS_OUT.unpack_from(data, _SEGMENTS_OUT_OFFSET)
    data_segments_in, data_segments_out = _DATA_SEGMENTS.unpack_from(data, _DATA_SEGMENTS_OFFSET)
    bytes_sent, bytes_retransmitted = _BYTES.unpack_from(data, _BYTES_SENT_OFFSET)
    return TcpInfo(
        segments_out=segments_out,
        data_segments_out=data_segments_out,
        data_segments_in=data_segments_in,
        bytes_sent=bytes_sent,
        bytes_retransmitted=bytes_retransmitted,
        out_of_order_segments_in=out_of_order,
    )


def read_tcp_info(connection: socket.socket) -> TcpInfo:
    """Ask the kernel. Raises OSError from one before 4.19."""
    info = parse_tcp_info(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _READ_BYTES))
    if info is None:
        raise OSError("this kernel's tcp_info is too short: Linux 4.19 or later is needed")
    return info
