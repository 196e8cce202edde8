"""What the kernel says of every TCP connection in a namespace: whose segments were data and whose acknowledgements.

Works for any stack, whoever wrote it: gloo's sockets as well as ours. Formats: sock_diag(7), linux/inet_diag.h.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from testbed.errors import MissingRequirementError
from testbed.system.netlink import NLM_F_DUMP, NetlinkError, NetlinkSocket, attributes
from transports.channels.tcp_info import TcpInfo, parse_tcp_info

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
INET_DIAG_INFO: Final = 2
ESTABLISHED_AND_CLOSING: Final = 0xFFF & ~(1 << 10)
"""Every state but LISTEN."""

_REQUEST: Final = struct.Struct("=BBBBI48s")
# struct inet_diag_msg: family, state, timer, retrans, then inet_diag_sockid: ports, addresses, interface, cookie
_MESSAGE: Final = struct.Struct(">4xHH16s16s")
_MESSAGE_BYTES: Final = 72
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""What an IPv4 address begins with where it is written as an IPv6 one (RFC 4291, 2.5.5.2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One end of one TCP connection since it was opened."""

    local: tuple[str, int]
    remote: tuple[str, int]
    counted: TcpInfo

    @property
    def acknowledgement_bytes(self) -> int:
        """Segments without data that this end sent, in bytes on the wire."""
        return self.counted.acknowledgement_bytes_out

    @property
    def retransmitted_bytes(self) -> int:
        """Payload that this end sent again."""
        return self.counted.bytes_retransmitted


class ConnectionMonitor(NetlinkSocket):
    """Reads the network namespace that the calling thread was in when the monitor was made."""

    def __init__(self) -> None:
        super().__init__(NETLINK_SOCK_DIAG)

    def connections(self) -> list[Connection]:
        """Every TCP connection of the namespace between IPv4 addresses. Raises MissingRequirementError."""
        try:
            answers = [answer for family in (socket.AF_INET, socket.AF_INET6) for answer in self._dump(family)]
        except NetlinkError as failure:
            raise MissingRequirementError("the kernel has no inet_diag: load tcp_diag (modprobe tcp_diag)") from failure
        return [connection for body in answers if (connection := _parse(body)) is not None]

    def _dump(self, family: int) -> Iterator[bytes]:
        request = _REQUEST.pack(
            family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, ESTABLISHED_AND_CLOSING, bytes(48)
        )
        return self.request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request)


def _parse(body: bytes) -> Connection | None:
    source_port, remote_port, source, remote = _MESSAGE.unpack_from(body)
    if body[0] == socket.AF_INET6:  # some stacks, gRPC's among them, use such sockets for IPv4 too
        if not source.startswith(_MAPPED) or not remote.startswith(_MAPPED):
            return None
        source, remote = source[len(_MAPPED) :], remote[len(_MAPPED) :]
    info = dict(attributes(body, _MESSAGE_BYTES)).get(INET_DIAG_INFO, b"")
    counted = parse_tcp_info(info)
    if counted is None:
        return None  # without a socket any more: in TIME_WAIT
    return Connection(
        local=(socket.inet_ntoa(source[:4]), source_port),
        remote=(socket.inet_ntoa(remote[:4]), remote_port),
        counted=counted,
    )
