"""Addresses and ports of loopback that no other process of the tests has: two suites may run side by side."""

import os
import random
import socket
from pathlib import Path

_random = random.Random(os.getpid())


def own_address(which: int) -> str:
    """127.x.y.z, for `which` from 0 to 127; the ports of the aggregation protocol are fixed, so that addresses tell."""
    number = os.getpid()
    return f"127.{128 + which}.{number >> 8 & 0xFF}.{number & 0xFF}"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has, and that nobody gets by chance meanwhile: it lies below those that the
    kernel gives to whoever asks for any (ip_local_port_range in ip(7))."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _random.randrange(min(10_000, first // 2), first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
