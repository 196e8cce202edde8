"""The memory channel's own store and rendezvous; the rest is the contract of channels."""

import threading
from datetime import timedelta

import pytest

from tests.threads import groups
from transports.channels.memory import Memory, MemoryStore
from transports.errors import PeerTimeoutError, TransportError


def test_a_wait_ends_with_the_set() -> None:
    store = MemoryStore()
    setter = threading.Timer(0.01, store.set, ("key", "value"))
    setter.start()
    store.wait(["key"], timedelta(seconds=20))
    assert store.get("key") == b"value"
    setter.join()


def test_a_wait_gives_up_after_the_timeout() -> None:
    with pytest.raises(TimeoutError, match="has set key within"):
        MemoryStore().wait(["key"], timedelta(seconds=0.01))


def test_a_hub_of_another_process_is_not_found() -> None:
    member = groups(2)[1]
    member.store.set(f"{member.name}/hub", "0" * 32)
    with pytest.raises(TransportError, match="rank 0 lives in another"):
        Memory().open(member)


def test_rank_0_that_never_comes_is_named() -> None:
    with pytest.raises(PeerTimeoutError) as raised:
        Memory().open(groups(2, timeout_s=0.05)[1])
    assert raised.value.peer == 0
