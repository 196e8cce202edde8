"""Sizes of a socket's buffers, as requested or not at all."""

import socket
from typing import Final

from transports.errors import UnsupportedError

LIMIT_BYTES: Final = 2**30 - 1
"""The kernel doubles what is requested, into an int (socket(7), sock_setsockopt in net/core/sock.c)."""
_OPTIONS: Final = {
    "send_buffer": (32, socket.SO_SNDBUF, "net.core.wmem_max"),
    "receive_buffer": (33, socket.SO_RCVBUF, "net.core.rmem_max"),
}
"""By field of the channel: the option that privileged programs may use beyond the limit (SO_SNDBUFFORCE and
SO_RCVBUFFORCE in asm-generic/socket.h), the one that is cut off at it without an error, and the limit."""


def set_buffer(connection: socket.socket, field: str, num_bytes: int) -> None:
    """Before it connects or listens, since windows are scaled in the handshake. Raises UnsupportedError, naming the
    field `send_buffer` or `receive_buffer`, where the kernel gives another size."""
    force, plain, limit = _OPTIONS[field]
    try:
        connection.setsockopt(socket.SOL_SOCKET, force, num_bytes)
    except PermissionError:
        connection.setsockopt(socket.SOL_SOCKET, plain, num_bytes)
    if (given_bytes := connection.getsockopt(socket.SOL_SOCKET, plain) // 2) != num_bytes:
        raise UnsupportedError(
            f"channel.{field}: the kernel gives {given_bytes} of {num_bytes} bytes; run as root, or raise its limit: "
            f"sysctl -w {limit}={num_bytes}"
            if given_bytes < num_bytes
            else f"channel.{field}: the kernel gives no less than {given_bytes} bytes"
        )
