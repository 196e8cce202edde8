"""What is the UDP channel's own; what it shares with the others is in tests/contract/test_channels.py."""

import threading
import time
from contextlib import closing
from typing import Any

import pytest
from pydantic import ValidationError

from switch_agg.driver import open_socket
from tests.threads import groups, run_threads
from tests.udp_twin import Kind, pack
from transports.channels._udp.endpoint import UdpEndpoint
from transports.channels.base import CHANNELS, Endpoint, Header
from transports.channels.framing import DTYPES, OPERATIONS
from transports.channels.udp import Udp
from transports.errors import OptionError, PeerLostError, TransportError
from transports.group import Group

FOREVER_S = 30.0


def header(count: int, phase: int = 0) -> Header:
    return Header(7, 1, OPERATIONS.index("all_reduce"), DTYPES.index("uint8"), count, phase)


def finish(endpoint: Endpoint, tokens: set[int]) -> None:
    deadline_s = time.monotonic() + FOREVER_S
    while tokens:
        tokens -= {completion.token for completion in endpoint.progress(deadline_s)}


def exchange(endpoint: Endpoint, group: Group, num_bytes: int) -> None:
    sent, received = bytes([group.rank + 1]) * num_bytes, bytearray(num_bytes)
    peer = 1 - group.rank
    tokens = {
        endpoint.post_send(peer, header(num_bytes), memoryview(sent)),
        endpoint.post_receive(peer, header(num_bytes), memoryview(received)),
    }
    finish(endpoint, tokens)
    assert received == bytes([peer + 1]) * num_bytes


@pytest.mark.parametrize("window", ["fixed", "aimd"])
def test_a_target_that_the_window_does_not_aim_for_is_refused(window: str) -> None:
    with pytest.raises(ValidationError, match="target: only `delay` aims for one; say window: delay"):
        CHANNELS.parse({"kind": "udp", "window": window, "target": "2ms"})
    assert CHANNELS.parse(CHANNELS.dump(CHANNELS.parse({"kind": "udp", "window": window}))).kind == "udp"


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "500mbit"},
        {"window": "aimd"},
        {"window": "delay", "target": "2ms"},
        {"packets": 3},
        {"payload": 64},
        {"payload": 8948},
    ],
    ids=str,
)
def test_every_option_carries_data(options: dict[str, Any]) -> None:
    def life(group: Group) -> None:
        with closing(CHANNELS.parse({"kind": "udp", **options}).open(group)) as endpoint:
            exchange(endpoint, group, 300_000)

    assert run_threads(life, groups(2)) == [None, None]


def test_a_given_rate_is_kept() -> None:
    """On the wire, and by all of a member's connections together; more slowly is always possible."""

    def life(group: Group) -> float:
        with closing(Udp(rate="40mbit").open(group)) as endpoint:
            started_s = time.monotonic()
            view = memoryview(bytes(500_000))
            others = {rank: bytearray(500_000) for rank in range(3) if rank != group.rank}
            tokens = {endpoint.post_send(rank, header(500_000), view) for rank in others}
            tokens |= {endpoint.post_receive(rank, header(500_000), memoryview(into)) for rank, into in others.items()}
            finish(endpoint, tokens)
            return time.monotonic() - started_s

    assert min(run_threads(life, groups(3))) > 0.9 * 2 * 500_000 * 8 / 40e6


def test_a_payload_that_does_not_fit_is_named() -> None:
    with pytest.raises(OptionError, match="1449 B do not fit an MTU of 1500; at most 1448"):
        Udp(payload=1449).wire_bytes(1, 1500)
    with pytest.raises(ValidationError):
        Udp(payload=9000)


def test_a_peer_that_dies_without_a_word_is_lost() -> None:
    """As after a kill, its sockets are closed and only its host is left to say so."""
    ours = groups(2)[0]
    with open_socket(("127.0.0.1", 0)) as theirs:
        host, port = theirs.getsockname()
        ours.store.set(f"{ours.name}/1/0", f"{host}:{port}:5")
        endpoint = Udp().open(ours)
    started_s = time.monotonic()
    with closing(endpoint), pytest.raises(PeerLostError, match="nobody listens") as raised:
        finish(endpoint, {endpoint.post_receive(1, header(4), memoryview(bytearray(4)))})
    assert raised.value.peer == 1
    assert time.monotonic() - started_s < FOREVER_S / 2


def test_unknown_senders_and_damaged_datagrams_are_counted_and_change_nothing() -> None:
    lies = [b"", b"GET / HTTP/1.1", pack(1, 1, Kind.DATA, 0, b"stray"), bytes(24), bytes(1472)]
    reported = threading.Barrier(2)

    def life(group: Group) -> int:
        endpoint = Udp().open(group)
        assert isinstance(endpoint, UdpEndpoint)
        with closing(endpoint):
            if group.rank == 1:
                for lie in lies:
                    endpoint._in_order[0].socket.send(lie)
            reported.wait()
            exchange(endpoint, group, 100_000)
            return endpoint.num_rejected

    assert run_threads(life, groups(2)) == [len(lies), 0]


def test_what_was_sent_is_repeated_while_the_sender_computes() -> None:
    """The receiver hears of nothing until its own copy is repeated, and nobody drives the sender's endpoint."""
    received = threading.Event()

    def life(group: Group) -> bytes:
        endpoint = Udp().open(group)
        assert isinstance(endpoint, UdpEndpoint)
        with closing(endpoint):
            if group.rank == 0:
                connection = endpoint._in_order[0].connection
                token = endpoint.post_send(1, header(4), memoryview(b"abcd"))
                with endpoint._driving:
                    assert connection.transmit(time.monotonic())  # taken, and never sent: lost
                received.wait(FOREVER_S)
                return token.to_bytes()
            view = bytearray(4)
            finish(endpoint, {endpoint.post_receive(0, header(4), memoryview(view))})
            received.set()
            return bytes(view)

    assert run_threads(life, groups(2))[1] == b"abcd"


def test_an_address_that_cannot_be_used_is_named() -> None:
    member = groups(2)[0]
    elsewhere = Group(
        name=member.name, rank=0, size=2, address="192.0.2.1", store=member.store, timeout_s=member.timeout_s
    )
    with pytest.raises(TransportError, match=r"rank 0 cannot use 192\.0\.2\.1"):
        Udp().open(elsewhere)
