"""Addresses and ports of loopback that no other process of the tests has: two suites may run side by side."""

import os
import socket


def own_address(which: int) -> str:
    """127.x.y.z, for `which` from 0 to 127; the ports of the aggregation protocol are fixed, so that addresses tell."""
    number = os.getpid()
    return f"127.{128 + which}.{number >> 8 & 0xFF}.{number & 0xFF}"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
