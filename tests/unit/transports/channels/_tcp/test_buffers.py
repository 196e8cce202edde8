"""Sizes of a socket's buffers."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from transports.channels._tcp.buffers import LIMIT_BYTES, set_buffer
from transports.errors import UnsupportedError


@pytest.fixture
def unconnected() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as opened:
        yield opened


def limit_bytes() -> int:
    return int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="ascii"))


def test_a_program_with_privileges_has_more_than_the_limit(unconnected: socket.socket) -> None:
    set_buffer(unconnected, "receive_buffer", 4 * limit_bytes())
    assert unconnected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 8 * limit_bytes()
    set_buffer(unconnected, "send_buffer", LIMIT_BYTES)


def test_what_the_kernel_cuts_off_is_an_error_that_names_the_limit(
    unconnected: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user: the kernel refuses the option that goes beyond."""

    def of_a_user(self: socket.socket, level: int, option: int, value: int) -> None:
        if option in {32, 33}:
            raise PermissionError(1, os.strerror(1))
        original(self, level, option, value)

    original = socket.socket.setsockopt
    monkeypatch.setattr(socket.socket, "setsockopt", of_a_user)
    set_buffer(unconnected, "receive_buffer", limit_bytes())
    with pytest.raises(UnsupportedError, match=r"channel\.receive_buffer: .* sysctl -w net\.core\.rmem_max="):
        set_buffer(unconnected, "receive_buffer", limit_bytes() + 4096)


def test_so_is_what_it_makes_larger(unconnected: socket.socket) -> None:
    with pytest.raises(UnsupportedError, match=r"channel\.send_buffer: the kernel gives no less than [0-9]+ bytes"):
        set_buffer(unconnected, "send_buffer", 1)
