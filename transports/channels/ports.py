"""Ports that a channel listens on."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NUM_DRAWS: Final = 16
_DEFAULT_PORT_RANGE: Final = (32768, 60999)
"""Where the kernel's own range cannot be read."""


def ports(group: str, rank: int, peer: int | None, allowed: tuple[int, int]) -> Iterator[int]:
    """The ports to try, in this order, for the member's connection to the peer (None: to listen on); at last 0, any.

    They lie in the range from which the kernel takes such ports itself, so that firewalls that allow those allow these.
    """
    first, last = allowed
    for draw in range(_NUM_DRAWS):
        digest = hashlib.blake2s(f"{group} {rank} {peer} {draw}".encode(), digest_size=8).digest()
        yield first + int.from_bytes(digest) % (last - first + 1)
    yield 0


def port_range() -> tuple[int, int]:
    """Of the calling thread's network namespace: ip_local_port_range in ip(7)."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return _DEFAULT_PORT_RANGE
    return int(first), int(last)
