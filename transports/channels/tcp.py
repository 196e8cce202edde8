"""TCP, one connection or several per pair of members, over the kernel's stack.

On emulated links the routes set congestion control (`congctl` in ip-route(8)), so that baselines get the same. A
connection that has another one than was requested, as on a cluster, is given it, and what the kernel says is read back.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from transports.channels._tcp.buffers import LIMIT_BYTES, set_buffer
from transports.channels._tcp.congestion import control
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels._tcp.program import build_library, library
from transports.channels._tcp.streams import StreamsEndpoint, connect_streams
from transports.channels.base import CHANNELS, Channel, Endpoint, ForwardReverse
from transports.channels.framing import DTYPES, HEADER_BYTES, REDUCTIONS
from transports.errors import UnsupportedError
from transports.group import Group
from transports.units import Size

ETHERNET_BYTES: Final = 14
SEGMENT_HEADER_BYTES: Final = 20 + 20 + 12
"""IPv4, TCP and its timestamps option, which Linux negotiates by default."""
MAX_STREAMS: Final = 64
SO_ZEROCOPY: Final = 60  # asm-generic/socket.h
ZERO_COPY_BYTES: Final = 16 << 10
"""Below some 10 kB pinning memory costs more than copying it (the kernel's msg_zerocopy.rst)."""


def summation(*, vectors: bool = True) -> Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], None]:
    """What adds the second array to the first, both (n,), as arriving messages are added; without `vectors` compiled so
    that it adds element by element, to compare with. Raises UnsupportedError where there is no C compiler."""
    found = library(vectors=vectors)
    if found is None:
        raise UnsupportedError("without a C compiler there is no native engine: apt-get install gcc libc6-dev")
    combine, of_float32, sums = found.combine, DTYPES.index("float32"), REDUCTIONS.index("sum")

    def add(total: npt.NDArray[np.float32], addend: npt.NDArray[np.float32]) -> None:
        combine(of_float32, sums, total.ctypes.data, addend.ctypes.data, addend.nbytes)

    return add


@CHANNELS.register
class Tcp(Channel):
    """TCP connections between every two members; never Nagle's algorithm, which would hold short messages back."""

    header_bytes: ClassVar[int] = HEADER_BYTES
    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = (build_library,)

    streams: int = Field(default=1, ge=1, le=MAX_STREAMS, description="connections per pair, taken in turn by messages")
    congestion: str | None = Field(
        default=None,
        min_length=1,
        description="congestion control, read back; null: cubic on emulated links, elsewhere what the host takes",
    )
    send_buffer: Size | None = Field(
        default=None, gt=0, le=LIMIT_BYTES, description="SO_SNDBUF, read back; null: the kernel adapts it"
    )
    receive_buffer: Size | None = Field(
        default=None, gt=0, le=LIMIT_BYTES, description="SO_RCVBUF, read back; null: the kernel adapts it"
    )
    zero_copy: bool = Field(
        default=False,
        description="send a collective's messages of 16 KiB and more without a copy (MSG_ZEROCOPY), which may pay on "
        "real network cards; over loopback and emulated links the kernel copies all the same",
    )

    @property
    def congestion_control(self) -> str | None:
        """See :class:`Channel`."""
        return self.congestion

    def open(self, group: Group) -> Endpoint:
        """See :class:`Channel`."""
        return self.connect(group)

    def connect(self, group: Group) -> TcpEndpoint:
        """To every other member, by as many streams as there shall be. Raises what `connect_mesh` raises, and
        UnsupportedError where connections cannot have that congestion control or buffers of that size, or cannot send
        without a copy."""
        self.require()
        library()  # built now, if need be, and not while the first operation's time runs
        mesh = connect_streams(group, self._configure, self.streams)
        try:
            for connection in mesh.sockets.values():
                self._settle(connection)
        except BaseException:
            mesh.close()
            raise
        zero_copy_bytes = ZERO_COPY_BYTES if self.zero_copy else 0
        if self.streams > 1:
            return StreamsEndpoint(group, mesh, self.streams, zero_copy_bytes=zero_copy_bytes)
        return TcpEndpoint(group, mesh, zero_copy_bytes=zero_copy_bytes)

    def require(self) -> None:
        """See :class:`Channel`."""
        if self.zero_copy and library() is None:
            raise UnsupportedError("channel.zero_copy: the engine that has it is not built; the log says why")

    def _configure(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.send_buffer is not None:
            set_buffer(connection, "send_buffer", self.send_buffer)
        if self.receive_buffer is not None:
            set_buffer(connection, "receive_buffer", self.receive_buffer)

    def _settle(self, connection: socket.socket) -> None:
        """What a connection can have only once it is one, read back."""
        if self.congestion is not None:
            control(connection, self.congestion)
        if self.zero_copy:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
            if not connection.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY):
                raise UnsupportedError("channel.zero_copy: this kernel cannot (Linux 4.14 or newer can)")

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """Forward: full segments and a last one on each stream, exact where they are uninterrupted. Reverse: an
        estimate, one acknowledgement for every two segments (RFC 5681, 4.2); receive offloads make it fewer."""
        segments = self.streams * -(-payload_bytes // (self.streams * (mtu - SEGMENT_HEADER_BYTES)))
        overhead_bytes = ETHERNET_BYTES + SEGMENT_HEADER_BYTES
        return ForwardReverse(payload_bytes + segments * overhead_bytes, -(-segments // 2) * overhead_bytes)

    def goodput_fraction(self, mtu: int) -> float:
        """See :class:`Channel`."""
        return (mtu - SEGMENT_HEADER_BYTES) / (mtu + ETHERNET_BYTES)
