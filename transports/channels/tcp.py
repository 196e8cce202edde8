"""TCP, one connection or several per pair of members, over the kernel's stack.

On emulated links the routes set congestion control (`congctl` in ip-route(8)), so that baselines get the same. A
connection that has another one than was asked for, as on a cluster, is given it, and what the kernel says is read back.
"""

import socket
from typing import ClassVar, Final

from pydantic import Field

from transports.channels._congestion import control
from transports.channels._tcp_endpoint import TcpEndpoint
from transports.channels._tcp_streams import StreamsEndpoint, connect_streams
from transports.channels.base import CHANNELS, Channel, Endpoint, ForwardReverse, Group
from transports.framing import HEADER_BYTES
from transports.units import Size

ETHERNET_BYTES: Final = 14
SEGMENT_HEADER_BYTES: Final = 20 + 20 + 12
"""IPv4, TCP and its timestamps option, which Linux negotiates by default."""
MAX_STREAMS: Final = 64


@CHANNELS.register
class Tcp(Channel):
    """TCP connections between every two members; never Nagle's algorithm, which would hold short messages back."""

    header_bytes: ClassVar[int] = HEADER_BYTES

    streams: int = Field(default=1, ge=1, le=MAX_STREAMS, description="connections per pair, taken in turn by messages")
    congestion: str | None = Field(
        default=None,
        min_length=1,
        description="congestion control, read back; null: cubic on emulated links, elsewhere what the host takes",
    )
    send_buffer: Size | None = Field(default=None, gt=0, description="SO_SNDBUF; null: the kernel adapts it")
    receive_buffer: Size | None = Field(default=None, gt=0, description="SO_RCVBUF; null: the kernel adapts it")

    @property
    def congestion_control(self) -> str | None:
        """See :class:`Channel`."""
        return self.congestion

    def open(self, group: Group) -> Endpoint:
        """See :class:`Channel`."""
        return self.connect(group)

    def connect(self, group: Group) -> TcpEndpoint:
        """To every other member, by as many streams as there shall be. Raises what `connect_mesh` raises, and
        UnsupportedError where connections cannot have that congestion control."""
        mesh = connect_streams(group, self._configure, self.streams)
        try:
            if self.congestion is not None:
                for connection in mesh.sockets.values():
                    control(connection, self.congestion)
        except BaseException:
            mesh.close()
            raise
        return StreamsEndpoint(group, mesh, self.streams) if self.streams > 1 else TcpEndpoint(group, mesh)

    def _configure(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.send_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        if self.receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """Forward: full segments and a last one on each stream, exact where they are uninterrupted. Reverse: an
        estimate, one acknowledgement for every two segments (RFC 5681, 4.2); receive offloads make it fewer."""
        segments = self.streams * -(-payload_bytes // (self.streams * (mtu - SEGMENT_HEADER_BYTES)))
        overhead_bytes = ETHERNET_BYTES + SEGMENT_HEADER_BYTES
        return ForwardReverse(payload_bytes + segments * overhead_bytes, -(-segments // 2) * overhead_bytes)

    def goodput_fraction(self, mtu: int) -> float:
        """See :class:`Channel`."""
        return (mtu - SEGMENT_HEADER_BYTES) / (mtu + ETHERNET_BYTES)
