"""What the kernel says of every TCP connection in a namespace: whose segments were data and whose acknowledgements.

Works for any stack, whoever wrote it: gloo's sockets as well as ours. Formats: sock_diag(7), linux/inet_diag.h.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Final

from testbed.errors import EnvironmentLacksError
from testbed.links.netlink import NLM_F_DUMP, NetlinkError, NetlinkSocket, attributes
from transports.tcp_info import TcpInfo, parse_tcp_info

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
INET_DIAG_INFO: Final = 2
ESTABLISHED_AND_CLOSING: Final = 0xFFF & ~(1 << 10)
"""Every state but LISTEN."""

_REQUEST: Final = struct.Struct("=BBBBI48s")
# struct inet_diag_msg: family, state, timer, retrans, then inet_diag_sockid: ports, addresses, interface, cookie
_MESSAGE: Final = struct.Struct(">4xHH16s16s")
_MESSAGE_BYTES: Final = 72


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One end of one TCP connection since it was opened."""

    local: tuple[str, int]
    remote: tuple[str, int]
    counted: TcpInfo

    @property
    def acknowledgement_bytes(self) -> int:
        """On the wire: segments without data that this end sent."""
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
        """Every IPv4 TCP connection of the namespace. Raises EnvironmentLacksError."""
        request = _REQUEST.pack(
            socket.AF_INET,
            socket.IPPROTO_TCP,
            1 << (INET_DIAG_INFO - 1),
            0,
            ESTABLISHED_AND_CLOSING,
            bytes(48),
        )
        try:
            answers = list(self.request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request))
        except NetlinkError as refusal:
            raise EnvironmentLacksError("the kernel has no inet_diag: load tcp_diag (modprobe tcp_diag)") from refusal
        return [connection for body in answers if (connection := _parse(body)) is not None]


def _parse(body: bytes) -> Connection | None:
    source_port, remote_port, source, remote = _MESSAGE.unpack_from(body)
    info = dict(attributes(body, _MESSAGE_BYTES)).get(INET_DIAG_INFO, b"")
    counted = parse_tcp_info(info)
    if counted is None:
        return None  # without a socket any more: in TIME_WAIT
    return Connection(
        local=(socket.inet_ntoa(source[:4]), source_port),
        remote=(socket.inet_ntoa(remote[:4]), remote_port),
        counted=counted,
    )
