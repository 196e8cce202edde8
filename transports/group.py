"""A group of members that talk over a channel, and the store through which they find each other."""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from transports.errors import PeerTimeoutError


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What a channel needs to connect the members of one process group."""

    name: str
    rank: int
    size: int
    address: str
    """This member's own address to listen on (never from gethostname())."""
    store: "Store"
    timeout_s: float
    racks: tuple[int, ...] = ()
    """For each rank, the number of its rack; empty: all in one."""


class Store(Protocol):
    """The rendezvous: torch's Store satisfies it, and so does the memory channel's MemoryStore."""

    def set(self, key: str, value: str) -> None:
        """Publish a value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when every key is set. Raises when that takes longer, whatever the store's own timeout."""

    def check(self, keys: list[str], /) -> bool:
        """Whether every key is set, without waiting."""

    def get(self, key: str) -> bytes:
        """The value of a key that is set."""


def published(group: Group, key: str, peer: int, what: str, deadline_s: float) -> str:
    """What `peer` has put into the store, waiting for it until the group's deadline (on time.monotonic()), since
    torch's stores would wait for minutes of their own. Raises PeerTimeoutError, saying `what` was awaited."""
    try:
        group.store.wait([key], timedelta(seconds=max(deadline_s - time.monotonic(), 0.001)))
        return group.store.get(key).decode()
    except (RuntimeError, OSError) as error:  # what torch's stores and ours raise when they have waited long enough
        raise PeerTimeoutError(peer, group.timeout_s, what) from error
