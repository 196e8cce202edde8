"""The kernel's congestion control of a connection: set where its route has not given it already, and read back."""

import socket
from pathlib import Path
from typing import Final

from transports.errors import UnsupportedError

_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_NAME_BYTES: Final = 16
"""TCP_CA_NAME_MAX of linux/tcp.h."""


def congestion_of(connection: socket.socket) -> str:
    """What the kernel says of a connection (TCP_CONGESTION in tcp(7))."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).rstrip(b"\0").decode()


def control(connection: socket.socket, congestion: str) -> None:
    """Raises UnsupportedError, with the fix, for one that this kernel has not or does not let us take."""
    if congestion_of(connection) == congestion:
        return
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        had = congestion_of(connection)
        reason = f"it became {had}"  # on Multipath TCP the kernel accepts a name that it does not know
    except OSError as error:
        had, reason = "", str(error.strerror)
    if had != congestion:
        allowed = _ALLOWED.read_text(encoding="ascii").strip()
        raise UnsupportedError(
            f"channel.congestion: {congestion} cannot be had on a connection ({reason}); allowed here: {allowed}; root "
            f"adds it with: modprobe tcp_{congestion}; sysctl -w net.ipv4.tcp_allowed_congestion_control="
            f"'{allowed} {congestion}'"
        )
