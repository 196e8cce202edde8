"""QUIC's own promises: only those who read the store are let in, and nobody else is taken for a member."""

import builtins
import json
import math
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.threads import groups, run_threads
from transports.channels._rpc.quic_streams import QuicStreams
from transports.channels.base import Header
from transports.channels.framing import OPERATIONS
from transports.channels.quic import Quic
from transports.errors import PeerLostError, TransportError, UnsupportedError
from transports.group import Group

ALL_REDUCE = OPERATIONS.index("all_reduce")


def finish(endpoint: Any, *tokens: int) -> None:
    left = set(tokens)
    while left:
        left -= {completion.token for completion in endpoint.progress(time.monotonic() + 20)}


def tampered(group: Group, key: str, value: object) -> None:
    """Whoever rank 0 is called by from now on reads something else in the store."""
    publish = group.store.set

    def set_other(name: str, announced: str) -> None:
        if name.endswith("/0/quic"):
            announced = json.dumps({**json.loads(announced), key: value})
        publish(name, announced)

    group.store.set = set_other  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_many_messages_in_both_directions_arrive_in_order(congestion: str) -> None:
    def life(group: Group) -> list[int]:
        with closing(Quic.model_validate({"congestion": congestion}).open(group)) as endpoint:
            peer, received = 1 - group.rank, [bytearray(5000) for _ in range(200)]
            tokens = []
            for number, view in enumerate(received):
                header = Header(7, number + 1, ALL_REDUCE, 0, 5000, 0)
                tokens.append(endpoint.post_send(peer, header, memoryview(bytes([number]) * 5000)))
                tokens.append(endpoint.post_receive(peer, header, memoryview(view)))
            finish(endpoint, *tokens)
            return [view[0] for view in received]

    assert run_threads(life, groups(2)) == [list(range(200))] * 2


@pytest.mark.parametrize(("key", "value"), [("word", "AAAAAAAAAAAAAAAAAAAAAA=="), ("port", 9)])
def test_who_does_not_know_the_word_or_the_port_is_not_let_in(key: str, value: object) -> None:
    members = groups(2, timeout_s=1.0)
    tampered(members[0], key, value)

    def life(group: Group) -> None:
        with pytest.raises(TransportError) as raised:
            Quic().open(group)
        assert getattr(raised.value, "peer", None) == 1 - group.rank

    assert run_threads(life, members) == [None, None]


def test_a_certificate_that_the_store_did_not_tell_is_not_trusted() -> None:
    members = groups(2, timeout_s=3.0)
    members[1] = replace(members[1], timeout_s=20.0)  # it ends with the handshake, whenever a busy machine comes to it
    (impostor,) = groups(1)
    with closing(QuicStreamsOf(impostor)) as other:
        tampered(members[0], "certificate", other.certificate)

    def life(group: Group) -> None:
        with pytest.raises(PeerLostError if group.rank else TransportError):
            Quic().open(group)

    assert run_threads(life, members) == [None, None]


class QuicStreamsOf:
    """One member's certificate, of another group."""

    def __init__(self, group: Group) -> None:
        self._streams = QuicStreams(group, "cubic")
        announced = json.loads(group.store.get(f"{group.name}/0/quic"))
        self.certificate: str = announced["certificate"]

    def close(self) -> None:
        self._streams.close(None, 0.0)


def test_a_machine_without_aioquic_is_given_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("aioquic"):
            raise ImportError(name)
        return usual(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UnsupportedError, match=r"pip install 'ina-testbed\[quic\]'"):
        Quic().open(groups(1)[0])


def test_its_bytes_are_an_estimate() -> None:
    assert not Quic().countable
    assert math.isclose(Quic().goodput_fraction(1500), 1436 / 1514)
    with pytest.raises(ValidationError, match="'cubic' or 'reno'"):
        Quic.model_validate({"congestion": "bbr"})
