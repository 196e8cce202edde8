"""What the kernel says of every TCP connection in a namespace: whose segments were data and whose acknowledgements.

Works for any stack, whoever wrote it: gloo's sockets as well as ours. Formats: sock_diag(7), linux/inet_diag.h,
struct tcp_info in linux/tcp.h.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from testbed.errors import EnvironmentLacksError

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST_DUMP: Final = 0x301
INET_DIAG_INFO: Final = 2
ESTABLISHED_AND_CLOSING: Final = 0xFFF & ~(1 << 10)
"""Every state but LISTEN."""
ACKNOWLEDGEMENT_BYTES: Final = 66
"""A segment without data on the wire: Ethernet 14, IPv4 20, TCP 20, time stamps 12."""

_NLMSG: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48s")
# struct inet_diag_msg: family, state, timer, retrans, then inet_diag_sockid: ports, addresses, interface, cookie
_MESSAGE: Final = struct.Struct(">4xHH16s16s")
_MESSAGE_BYTES: Final = 72
_SEGMENTS_OUT: Final = struct.Struct("=I")
_RETRANSMITTED: Final = struct.Struct("=Q")
# Offsets in struct tcp_info, stable since they were added (4.2, 4.6, 4.19).
_OFFSET_SEGMENTS_OUT: Final = 136
_OFFSET_DATA_SEGMENTS_OUT: Final = 156
_OFFSET_BYTES_RETRANSMITTED: Final = 208


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One end of one TCP connection since it was opened."""

    local: tuple[str, int]
    remote: tuple[str, int]
    num_acknowledgements: int
    """Segments without data that this end sent."""
    retransmitted_bytes: int

    @property
    def acknowledgement_bytes(self) -> int:
        """On the wire."""
        return self.num_acknowledgements * ACKNOWLEDGEMENT_BYTES


class ConnectionMonitor:
    """Reads the network namespace that the calling thread was in when the monitor was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        self._socket.settimeout(5.0)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def connections(self) -> list[Connection]:
        """Every IPv4 TCP connection of the namespace. Raises EnvironmentLacksError."""
        request = _REQUEST.pack(
            socket.AF_INET,
            socket.IPPROTO_TCP,
            1 << (INET_DIAG_INFO - 1),
            0,
            ESTABLISHED_AND_CLOSING,
            bytes(48),
        )
        header = _NLMSG.pack(_NLMSG.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0)
        self._socket.send(header + request)
        return [connection for body in self._answers() if (connection := _parse(body)) is not None]

    def _answers(self) -> Iterator[bytes]:
        while True:
            data = self._socket.recv(1 << 18)
            offset = 0
            while offset + _NLMSG.size <= len(data):
                length, kind, _, _, _ = _NLMSG.unpack_from(data, offset)
                if kind == 3:  # NLMSG_DONE
                    return
                if kind == 2:  # NLMSG_ERROR
                    raise EnvironmentLacksError("the kernel has no inet_diag: load tcp_diag (modprobe tcp_diag)")
                yield data[offset + _NLMSG.size : offset + length]
                offset += (length + 3) & ~3


def _parse(body: bytes) -> Connection | None:
    source_port, remote_port, source, remote = _MESSAGE.unpack_from(body)
    offset = _MESSAGE_BYTES
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, offset)
        info = body[offset + 4 : offset + length]
        if kind == INET_DIAG_INFO and len(info) >= _OFFSET_BYTES_RETRANSMITTED + 8:
            segments = _SEGMENTS_OUT.unpack_from(info, _OFFSET_SEGMENTS_OUT)[0]
            data_segments = _SEGMENTS_OUT.unpack_from(info, _OFFSET_DATA_SEGMENTS_OUT)[0]
            return Connection(
                local=(socket.inet_ntoa(source[:4]), source_port),
                remote=(socket.inet_ntoa(remote[:4]), remote_port),
                num_acknowledgements=segments - data_segments,
                retransmitted_bytes=_RETRANSMITTED.unpack_from(info, _OFFSET_BYTES_RETRANSMITTED)[0],
            )
        offset += max(4, (length + 3) & ~3)
    return None
