"""The native engine does what the executor does, and ends as an endpoint ends when something is out of the ordinary."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.threads import groups, run_communicators, run_threads
from transports.channels import _tcp_program
from transports.channels._tcp_program import program_of
from transports.channels.base import CHANNELS, Group, Header, published
from transports.channels.tcp import Tcp
from transports.collectives.base import COLLECTIVES, Chunk, Step
from transports.collectives.dependencies import dependencies
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.framing import DTYPES, GOODBYE, HEADER_BYTES, HELLO, OPERATIONS, REDUCTIONS, argument, group_id, pack
from transports.transport import Transport

ALL_REDUCE = OPERATIONS.index("all_reduce")
NUM_ELEMENTS = 100
TINY = {"kind": "tcp", "send_buffer": "4KiB", "receive_buffer": "4KiB"}


def sums(kind: str, dtype: torch.dtype, size: int, num_elements: int, channel: object = "tcp") -> list[torch.Tensor]:
    def life(opened: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(opened.rank)
        values = (torch.rand(num_elements, generator=generator) * 1000).to(dtype)
        for _ in range(2):
            opened.all_reduce(values).wait(20)
        return values

    results = run_communicators(life, size, channel=channel, collective=kind)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
@settings(max_examples=4, deadline=None)
@given(
    kind=st.sampled_from(["ring", "halving_doubling", "recursive_doubling", "tree", "all_to_all"]),
    size=st.integers(2, 5),
    num_elements=st.integers(1, 200_000),
)
def test_the_same_bits_come_with_and_without_it(dtype: torch.dtype, kind: str, size: int, num_elements: int) -> None:
    natively = sums(kind, dtype, size, num_elements)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tcp_program, "library", lambda: None)
        interpreted = sums(kind, dtype, size, num_elements)
    for one, other in zip(natively, interpreted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", sorted(set(COLLECTIVES.kinds()) - {"in_network"}))
def test_messages_longer_than_every_buffer_pass(kind: str) -> None:
    """Everybody sends at once and nobody's socket holds a message: who did not read meanwhile would wait for ever."""
    results = sums(kind, torch.float32, 4, 300_000, TINY)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_schedule_with_steps_that_move_nothing_is_not_for_it() -> None:
    steps = [Step("add", Chunk("output", 0, 4), 0, Chunk("scratch", 0, 4))]
    assert program_of(steps, dependencies(steps), 4) is None


def words(count: int = NUM_ELEMENTS // 2, phase: int = 0, operation: int = ALL_REDUCE, group: str = "") -> Header:
    reduced = argument(ALL_REDUCE, REDUCTIONS.index("sum"), 0)
    return Header(group_id(group), 1, operation, DTYPES.index("float32"), count, phase, reduced, NUM_ELEMENTS)


@contextmanager
def beside(impostor: Callable[[socket.socket, str], None], timeout_s: float = 20.0) -> Iterator[Transport]:
    """Rank 0 of two in a ring; rank 1 is a plain socket that says hello properly and then does what it likes."""
    group = groups(2, timeout_s=timeout_s)[0]

    def life() -> None:
        host, _, port = published(group, f"{group.name}/0", 0, "its address", time.monotonic() + 20).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(pack(Header(group_id(group.name), 0, HELLO, 0, 2, 1)))
            assert len(connection.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
            impostor(connection, group.name)

    thread = threading.Thread(target=life)
    thread.start()
    try:
        with closing(Transport(COLLECTIVES.parse("ring"), Tcp(), group)) as transport:
            transport.deadline_s = time.monotonic() + timeout_s
            yield transport
    finally:
        thread.join()


def test_what_comes_byte_by_byte_is_added_whole() -> None:
    def trickle(connection: socket.socket, group: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for phase in range(2):
            payload = np.arange(NUM_ELEMENTS // 2, dtype=np.float32).tobytes()
            message = pack(words(phase=phase, group=group)) + payload
            for start in range(0, len(message), 7):
                connection.sendall(message[start : start + 7])
        connection.recv(1 << 20)

    with beside(trickle) as transport:
        values = torch.ones(NUM_ELEMENTS)
        transport.all_reduce(values)
    counted = torch.arange(NUM_ELEMENTS // 2, dtype=torch.float32)
    assert sorted(values.tolist()) == sorted([*(counted + 1).tolist(), *counted.tolist()])


def waits(for_what: threading.Event) -> None:
    assert for_what.wait(20)


def says(what: Callable[[str], bytes]) -> Callable[[socket.socket, str], None]:
    """Something, and then nothing more; what it is told it reads to the end."""

    def impostor(connection: socket.socket, group: str) -> None:
        connection.sendall(what(group))
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass

    return impostor


def whole(group: str) -> bytes:
    return pack(words(group=group)) + bytes(2 * NUM_ELEMENTS)


CASES: dict[str, tuple[Callable[[str], bytes], type[TransportError], str]] = {
    "garbage": (lambda _: b"\xff" * 300, FrameMismatchError, "not a frame header: ffff"),
    "another operation": (
        lambda group: pack(words(operation=OPERATIONS.index("barrier"), group=group)),
        FrameMismatchError,
        "rank 1 sends barrier",
    ),
    "another length": (
        lambda group: pack(words(count=7, group=group)),
        FrameMismatchError,
        "rank 0 expects all_reduce (sum) #1, message 0: 50 float32",
    ),
    "another phase": (lambda group: whole(group) * 2, FrameMismatchError, "message 1"),
    "nothing": (lambda _: b"", PeerLostError, "it closed the connection"),
    "half a header": (lambda group: whole(group)[:20], PeerLostError, "it closed the connection"),
    "half a message": (lambda group: whole(group)[:99], PeerLostError, "it closed the connection"),
    "one of two messages": (whole, PeerLostError, "it closed the connection"),
    "a goodbye": (
        lambda group: pack(Header(group_id(group), 0, GOODBYE, 0, 0, 0)),
        PeerLostError,
        "it closed the group after operation #0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_peer_that_does_something_else_is_named(case: str) -> None:
    said, expected, told = CASES[case]
    with (
        beside(says(said)) as transport,
        pytest.raises(expected) as raised,
    ):
        transport.all_reduce(torch.ones(NUM_ELEMENTS))
    assert told in str(raised.value)
    assert "1" in str(raised.value)


def test_a_silent_peer_is_named_with_what_was_awaited() -> None:
    heard = threading.Event()
    with beside(lambda *_: waits(heard), timeout_s=0.3) as transport:
        with pytest.raises(PeerTimeoutError, match=r"all_reduce \(sum\) #1, message 0: 50 float32"):
            transport.all_reduce(torch.ones(NUM_ELEMENTS))
        heard.set()


def test_closing_from_another_thread_ends_it() -> None:
    heard = threading.Event()
    with beside(lambda *_: waits(heard)) as transport:
        threading.Timer(0.1, transport.close).start()
        with pytest.raises(TransportError, match="closed the group itself"):
            transport.all_reduce(torch.ones(NUM_ELEMENTS))
        heard.set()


def test_who_has_done_its_part_may_leave_and_is_missed_later() -> None:
    def life(group: Group) -> torch.Tensor:
        with closing(Transport(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), group)) as transport:
            transport.deadline_s = time.monotonic() + 20
            values = torch.full((500_000,), float(group.rank))
            transport.broadcast(values)
            if group.rank == 2:
                with pytest.raises(PeerLostError):
                    transport.all_reduce(torch.ones(1))
            return values

    for result in run_threads(life, groups(3)):
        assert isinstance(result, torch.Tensor), result
        assert not result.any()


def test_bytes_are_counted_headers_included() -> None:
    def life(group: Group) -> tuple[int, int]:
        with closing(Transport(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), group)) as transport:
            transport.deadline_s = time.monotonic() + 20
            transport.all_reduce(torch.ones(NUM_ELEMENTS))
            (found,) = transport.endpoint.statistics().values()
            return found.payload_bytes_sent, found.payload_bytes_received

    expected = 2 * (HEADER_BYTES + 2 * NUM_ELEMENTS)
    assert run_threads(life, groups(2)) == [(expected, expected)] * 2
