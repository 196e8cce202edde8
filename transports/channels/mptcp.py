"""Multipath TCP (RFC 8684), the kernel's: one connection per pair of members, its bytes spread over several subflows.

Subflows beyond the first go to the same address and other ports, which the host's path manager announces (`ip mptcp
endpoint add ADDRESS port PORT signal`, ip-mptcp(8)); which of several equal paths each takes is decided by the
switches' hash. The testbed sets the path managers of its hosts; on a cluster whoever owns the host does.
"""

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field

from transports.channels._tcp.congestion import control
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels._tcp.mesh import Mesh, connect_mesh
from transports.channels._tcp.program import build_library
from transports.channels.base import CHANNELS, Channel, Endpoint, ForwardReverse
from transports.channels.framing import HEADER_BYTES
from transports.channels.tcp import ETHERNET_BYTES, SEGMENT_HEADER_BYTES
from transports.errors import UnsupportedError
from transports.group import Group

IPPROTO_MPTCP: Final = 262
SOL_MPTCP: Final = 284
MPTCP_INFO: Final = 1
DATA_SEQUENCE_BYTES: Final = 24
"""Of the DSS option with which data says where in the whole stream it belongs; with 32 bits of acknowledgement."""
MAX_SUBFLOWS: Final = 8
_POLL_S: Final = 2e-3


@CHANNELS.register
class Mptcp(Channel):
    """One Multipath TCP connection per pair of members."""

    header_bytes: ClassVar[int] = HEADER_BYTES
    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = (build_library,)

    subflows: int = Field(
        default=1, ge=1, le=MAX_SUBFLOWS, description="of each connection; all must come, or the group does not open"
    )
    congestion: str = Field(
        default="cubic", min_length=1, description="congestion control; each subflow has its own state of it"
    )

    @property
    def congestion_control(self) -> str:
        """See :class:`Channel`."""
        return self.congestion

    @property
    def num_subflows(self) -> int:
        """See :class:`Channel`."""
        return self.subflows

    def require_kernel(self) -> None:
        """See :class:`Channel`."""
        require_mptcp()

    def open(self, group: Group) -> Endpoint:
        """See :class:`Channel`. Raises UnsupportedError where the kernel has no Multipath TCP or not that congestion
        control, or when fewer subflows than requested have come within the group's timeout."""
        deadline_s = time.monotonic() + group.timeout_s
        require_mptcp()
        mesh = connect_mesh(group, self._configure, protocol=IPPROTO_MPTCP)
        try:
            self._await_subflows(mesh, deadline_s)
        except BaseException:
            mesh.close()
            raise
        # With a low water mark a connection can stop for good: the window of one subflow may end below it.
        return TcpEndpoint(group, mesh, low_water_bytes=1)

    def _configure(self, connection: socket.socket) -> None:
        """Of a route's congestion control only the first subflow learns: the kernel gives the accepting side's others
        the namespace's default, unless the connection itself has one."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control(connection, self.congestion)

    def _await_subflows(self, mesh: Mesh, deadline_s: float) -> None:
        for peer, connection in mesh.sockets.items():
            while (found := num_subflows(connection)) < self.subflows:
                if time.monotonic() >= deadline_s:
                    more = self.subflows - 1
                    raise UnsupportedError(
                        f"channel.subflows: the connection to rank {peer} has {found} of {self.subflows}; on every "
                        f"host of the group: ip mptcp limits set subflows {more} add_addr_accepted {more}, and {more} "
                        "times: ip mptcp endpoint add ADDRESS port PORT signal"
                    )
                time.sleep(_POLL_S)

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """As TCP's, with the option that says where in the stream data belongs."""
        header_bytes = SEGMENT_HEADER_BYTES + DATA_SEQUENCE_BYTES
        segments = -(-payload_bytes // (mtu - header_bytes))
        overhead_bytes = ETHERNET_BYTES + header_bytes
        return ForwardReverse(payload_bytes + segments * overhead_bytes, -(-segments // 2) * overhead_bytes)

    def goodput_fraction(self, mtu: int) -> float:
        """See :class:`Channel`."""
        return (mtu - SEGMENT_HEADER_BYTES - DATA_SEQUENCE_BYTES) / (mtu + ETHERNET_BYTES)


def require_mptcp() -> None:
    """Raises UnsupportedError, with the fix, where no such socket can be had."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        raise UnsupportedError(
            f"this kernel has no Multipath TCP ({error.strerror}): sysctl net.mptcp.enabled=1, or a kernel of 5.6 or "
            "later with CONFIG_MPTCP; or use channel tcp"
        ) from error


def num_subflows(connection: socket.socket) -> int:
    """Of a connection, the first included; 1 where the peer knows no Multipath TCP and it has become plain TCP."""
    try:
        return 1 + connection.getsockopt(SOL_MPTCP, MPTCP_INFO, 4)[0]
    except OSError:
        return 1
