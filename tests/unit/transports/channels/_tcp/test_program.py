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
from pydantic import ValidationError

from tests.threads import groups, run_communicators, run_threads
from transports.channels import tcp
from transports.channels._tcp import program
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels.base import CHANNELS, Header
from transports.channels.framing import (
    DTYPES,
    GOODBYE,
    HEADER_BYTES,
    HELLO,
    OPERATIONS,
    REDUCTIONS,
    argument,
    group_id,
    pack,
)
from transports.channels.tcp import Tcp
from transports.collectives.base import COLLECTIVES
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError, UnsupportedError
from transports.execution.operations import ReduceOperation, Transport
from transports.group import Group, published

ALL_REDUCE = OPERATIONS.index("all_reduce")
NUM_ELEMENTS = 100
TINY = {"kind": "tcp", "send_buffer": "4KiB", "receive_buffer": "4KiB"}


def reduced(
    kind: str, dtype: torch.dtype, size: int, num_elements: int, channel: object = "tcp", op: str = "sum"
) -> list[torch.Tensor]:
    def life(opened: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(opened.rank)
        values = torch.rand(num_elements, generator=generator) * 100 + 1
        values = values > 50 if dtype == torch.bool else values.to(dtype)
        for _ in range(2):
            opened.all_reduce(values, op).wait(20)
        return values

    results = run_communicators(life, size, channel=channel, collective=kind)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_the_same_bits_come_with_and_without_it(dtype: str, data: st.DataObject) -> None:
    chosen = getattr(torch, dtype)
    operations = ["sum", "product", "min", "max", *([] if chosen.is_floating_point else ["band", "bor", "bxor"])]
    op = data.draw(st.sampled_from(operations), "op")
    kind = data.draw(st.sampled_from(["ring", "halving_doubling", "recursive_doubling", "tree", "all_to_all"]), "kind")
    size, num_elements = data.draw(st.integers(2, 5), "size"), data.draw(st.integers(1, 200_000), "num_elements")
    channel = {"kind": "tcp", "streams": data.draw(st.sampled_from([1, 1, 2, 3, 5]), "streams")}
    natively = reduced(kind, chosen, size, num_elements, channel, op)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "library", lambda: None)
        interpreted = reduced(kind, chosen, size, num_elements, channel, op)
    for one, other in zip(natively, interpreted, strict=True):
        assert torch.equal(one, other)


NARROW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SPECIAL = (0, 1, 0x007F, 0x0080, 0x03FF, 0x0400, 0x3C00, 0x3F80, 0x7BFF, 0x7C00, 0x7C01, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF)


@pytest.mark.parametrize("op", [torch.add, torch.mul, torch.minimum, torch.maximum])
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_meet_as_in_torch(dtype: str, op: Callable[..., torch.Tensor]) -> None:
    """Every value with every kind of value, bit by bit, but for what is no number: of that there are many."""
    library = program.library()
    assert library is not None
    reduction = {torch.add: "sum", torch.mul: "product", torch.minimum: "min", torch.maximum: "max"}[op]
    drawn = np.random.default_rng(1).integers(0, 1 << 16, 20)
    partners = np.concatenate([SPECIAL, np.array(SPECIAL) | 0x8000, drawn]).astype(np.uint16)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(NARROW[dtype])
    for partner in partners.view(np.int16):
        operand = torch.full((1 << 16,), int(partner), dtype=torch.int16).view(NARROW[dtype])
        for stride in (1 << 16, 7):  # short of a vector, too
            first = every[:: (1 << 16) // stride].contiguous()
            result = first.clone()
            arguments = result.data_ptr(), operand.data_ptr(), result.nbytes
            library.combine(DTYPES.index(dtype), REDUCTIONS.index(reduction), *arguments)
            expected = op(first, operand[: len(first)])
            numbers = ~expected.isnan()
            assert torch.equal(result.isnan(), ~numbers)
            assert torch.equal(result[numbers], expected[numbers])
            if reduction in {"sum", "product"}:  # of two zeros either may be the less
                assert torch.equal(result[numbers].view(torch.int16), expected[numbers].view(torch.int16))


@pytest.mark.parametrize("channel", [TINY, {**TINY, "streams": 3}])
@pytest.mark.parametrize("kind", sorted(set(COLLECTIVES.kinds()) - {"in_network"}))
def test_messages_longer_than_every_buffer_pass(kind: str, channel: object) -> None:
    """Everybody sends at once and nobody's socket holds a message: who did not read meanwhile would wait for ever."""
    results = reduced(kind, torch.float32, 4, 300_000, channel)
    assert all(torch.equal(result, results[0]) for result in results)


SUPER_FRAME_ELEMENTS = 62 * 1024 // 4
HEADER_ELEMENTS = HEADER_BYTES // 4


@pytest.mark.parametrize("channel", ["tcp", TINY])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("num_elements", [SUPER_FRAME_ELEMENTS, 2 * SUPER_FRAME_ELEMENTS, 32 * 1024])
def test_what_is_sent_in_even_pieces_comes_whole(num_elements: int, more: int, channel: object) -> None:
    """At both sides of each length at which there is a piece more."""
    for kind in ("recursive_doubling", "all_to_all"):
        results = reduced(kind, torch.int32, 2, num_elements - HEADER_ELEMENTS + more, channel)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "library", lambda: None)
            assert torch.equal(results[0], reduced(kind, torch.int32, 2, len(results[0]))[0])
        assert torch.equal(results[0], results[1])


def words(count: int = NUM_ELEMENTS // 2, phase: int = 0, operation: int = ALL_REDUCE, group: str = "") -> Header:
    reduced = argument(ALL_REDUCE, REDUCTIONS.index("sum"), 0)
    return Header(group_id(group), 1, operation, DTYPES.index("float32"), count, phase, reduced, NUM_ELEMENTS)


@contextmanager
def connected(group: Group, name: str, rank: int = 1) -> Iterator[socket.socket]:
    """A plain socket that says hello to rank 0 properly, as that rank of the mesh of that name."""
    host, _, port = published(group, f"{name}/0", 0, "its address", time.monotonic() + 20).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(pack(Header(group_id(name), 0, HELLO, 0, group.size, rank)))
        assert len(connection.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
        yield connection


@contextmanager
def beside(
    impostor: Callable[[socket.socket, str], None],
    timeout_s: float = 20.0,
    second: Callable[[socket.socket, str], None] | None = None,
    **options: Any,
) -> Iterator[Transport]:
    """Rank 0 of two in a ring; rank 1 is a plain socket that says hello properly and then does what it likes, or two
    of them."""
    group = groups(2, timeout_s=timeout_s)[0]

    def life() -> None:
        if second is None:
            with connected(group, group.name) as connection:
                impostor(connection, group.name)
            return
        with (
            connected(group, f"{group.name}/stream0") as connection,
            connected(group, f"{group.name}/stream1") as other,
        ):
            answering = threading.Thread(target=second, args=(other, group.name))
            answering.start()
            impostor(connection, group.name)
            answering.join()

    thread = threading.Thread(target=life)
    thread.start()
    try:
        channel = Tcp(streams=2 if second else 1, **options)
        with closing(Transport(COLLECTIVES.parse("ring"), channel, group)) as transport:
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
        with suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass

    with beside(trickle) as transport:
        values = torch.ones(NUM_ELEMENTS)
        transport.all_reduce(values)
    counted = torch.arange(NUM_ELEMENTS // 2, dtype=torch.float32)
    assert sorted(values.tolist()) == sorted([*(counted + 1).tolist(), *counted.tolist()])


def waits(for_what: threading.Event) -> None:
    assert for_what.wait(20)


def says(what: Callable[[str], bytes], *, ends: bool = True) -> Callable[[socket.socket, str], None]:
    """Something, and then nothing more, or that nothing more will come; what it is sent it reads to the end."""

    def impostor(connection: socket.socket, group: str) -> None:
        with suppress(OSError):
            connection.sendall(what(group))
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    return impostor


def whole(group: str, phase: int = 0) -> bytes:
    return pack(words(group=group, phase=phase)) + bytes(2 * NUM_ELEMENTS)


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
        "rank 0 expects all_reduce (sum) #1 of 100 float32 (400 B), message 0: 50 float32",
    ),
    "another phase": (lambda group: whole(group) * 2, FrameMismatchError, "message 1"),
    "another phase, and no more": (
        lambda group: whole(group) + pack(words(group=group)),
        FrameMismatchError,
        "message 1",
    ),
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
    said, expected, reported = CASES[case]
    with (
        beside(says(said)) as transport,
        pytest.raises(expected) as raised,
    ):
        transport.all_reduce(torch.ones(NUM_ELEMENTS))
    assert reported in str(raised.value)
    assert "1" in str(raised.value)


@pytest.mark.parametrize("case", CASES)
def test_it_is_named_as_well_when_its_end_comes_with_it(case: str) -> None:
    """What was said is unread when the end is noticed: the close frame and the end in one segment, and awaited."""
    said, expected, reported = CASES[case]

    def impostor(connection: socket.socket, group: str) -> None:
        connection.recv(HEADER_BYTES + 2 * NUM_ELEMENTS, socket.MSG_WAITALL)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        with suppress(OSError):
            connection.sendall(said(group))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    with beside(impostor) as transport, pytest.raises(expected) as raised:
        transport.all_reduce(torch.ones(NUM_ELEMENTS))
    assert reported in str(raised.value)


@pytest.mark.parametrize("engine", ["native", "none"])
def test_half_a_header_after_the_end_was_noticed_is_not_waited_for(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end comes with the last message of one operation and some bytes of the next: it is noticed in the first."""
    if engine == "none":
        monkeypatch.setattr(program, "library", lambda: None)
    waiting = threading.Event()

    def impostor(connection: socket.socket, group: str) -> None:
        connection.sendall(whole(group))
        waits(waiting)
        time.sleep(0.1)  # until it waits for more; earlier, and there is less to see
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        with suppress(OSError):
            connection.sendall(whole(group, phase=1) + pack(words(group=group))[:20])
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    with beside(impostor) as transport:
        waiting.set()
        transport.all_reduce(torch.ones(NUM_ELEMENTS))
        with pytest.raises(PeerLostError, match="it closed the connection"):
            transport.all_reduce(torch.ones(NUM_ELEMENTS))


@pytest.mark.parametrize("engine", ["native", "none"])
@pytest.mark.parametrize("leaver", [1, 2])
def test_who_leaves_first_is_named_though_another_s_end_is_noticed_before(
    leaver: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank says goodbye; the other, in the middle of a message to us, can say nothing and ends for want of it."""
    if engine == "none":
        monkeypatch.setattr(program, "library", lambda: None)
    group = groups(3)[0]
    gone = threading.Event()

    def life() -> None:
        with connected(group, group.name, leaver) as first, connected(group, group.name, 3 - leaver) as second:
            second.sendall(pack(words(NUM_ELEMENTS, group=group.name))[:20])
            second.shutdown(socket.SHUT_WR)
            first.sendall(pack(Header(group_id(group.name), 0, GOODBYE, 0, 0, 0)))
            first.shutdown(socket.SHUT_WR)
            gone.set()
            for each in (first, second):
                with suppress(OSError):
                    while each.recv(1 << 16):
                        pass

    thread = threading.Thread(target=life)
    thread.start()
    with closing(Transport(COLLECTIVES.parse("all_to_all"), Tcp(), group)) as transport:
        waits(gone)
        transport.deadline_s = time.monotonic() + 20
        with pytest.raises(PeerLostError) as raised:
            transport.all_reduce(torch.ones(NUM_ELEMENTS))
    thread.join()
    assert raised.value.peer == leaver


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (lambda _: b"\xff" * 300, FrameMismatchError),
        (whole, FrameMismatchError),
        (lambda group: whole(group, phase=1)[:99], PeerLostError),
        (lambda _: b"", PeerLostError),
    ],
    ids=["garbage", "the first one's", "half a message", "nothing"],
)
def test_a_second_connection_is_held_to_its_own_messages(
    said: Callable[[str], bytes], expected: type[TransportError]
) -> None:
    with beside(says(whole, ends=False), second=says(said)) as transport, pytest.raises(expected, match=r"\b1\b"):
        transport.all_reduce(torch.ones(NUM_ELEMENTS))


def test_two_connections_take_the_messages_of_one_schedule_in_turn() -> None:
    with beside(says(whole, ends=False), second=says(lambda group: whole(group, phase=1), ends=False)) as transport:
        values = torch.ones(NUM_ELEMENTS)
        transport.all_reduce(values)
        assert sorted(values.tolist()) == [0.0] * (NUM_ELEMENTS // 2) + [1.0] * (NUM_ELEMENTS // 2)


def test_turns_go_on_where_schedules_and_single_messages_alternate() -> None:
    def life(opened: Any) -> None:
        for number in range(7):
            values = torch.full((NUM_ELEMENTS + number,), 2.0**opened.rank)
            opened.all_reduce(values).wait()
            assert values.eq(7.0).all()
            single = torch.full((number,), float(opened.rank))
            sent = opened.send(single, (opened.rank + 1) % 3)
            received = torch.empty(number)
            opened.receive(received, (opened.rank - 1) % 3).wait()
            sent.wait()
            assert received.eq((opened.rank - 1) % 3).all()

    assert run_communicators(life, 3, channel={"kind": "tcp", "streams": 4}) == [None] * 3


def _die(connections: list[socket.socket]) -> None:
    for connection in connections:
        with suppress(OSError):  # the first end may be noticed, and everything closed, before the others
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"zero_copy": True}, {"zero_copy": True, "streams": 2}])
@pytest.mark.parametrize(("dtype", "op"), [("float16", "sum"), ("bfloat16", "sum"), ("int8", "max")])
def test_who_dies_in_mid_schedule_is_missed_by_everybody(
    dtype: str, op: ReduceOperation, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(transport: Transport) -> None:
        while True:
            transport.all_reduce(torch.zeros(1_000_000, dtype=getattr(torch, dtype)), op)

    def life(group: Group) -> int:
        with closing(Transport(COLLECTIVES.parse("ring"), Tcp(**options), group)) as transport:
            transport.deadline_s = time.monotonic() + 20
            if group.rank == 1:
                assert isinstance(transport.endpoint, TcpEndpoint)
                monkeypatch.setattr(transport.endpoint, "_say_goodbye", lambda: None)  # as who is killed
                dying = threading.Timer(0.05, _die, [[each.socket for each in transport.endpoint._peers.values()]])
                dying.start()
            with pytest.raises(PeerLostError) as raised:
                work(transport)
            return raised.value.peer

    first, second, third = run_threads(life, groups(3))
    assert isinstance(second, int), second
    assert [first, third] == [1, 1]


@pytest.mark.parametrize("kind", ["ring", "all_to_all", "parameter_server"])
@pytest.mark.parametrize("streams", [1, 3])
def test_without_a_copy_the_same_comes_of_it_and_memory_is_ours_again_at_the_end(kind: str, streams: int) -> None:
    """Messages long and short alternate; what is sent is overwritten as soon as the operation says that it is done."""

    def life(opened: Any) -> tuple[int, int]:
        for num_elements in (100, 5_000, 500_000, 7, 300_001):
            values = torch.full((num_elements,), float(opened.rank + 1))
            for _ in range(2):
                opened.all_reduce(values).wait(20)
                assert values.eq(6.0).all()
                values.fill_(opened.rank + 1)
        endpoint = opened._transport.endpoint
        assert isinstance(endpoint, TcpEndpoint)
        return endpoint.zero_copy_counts

    channel = {"kind": "tcp", "zero_copy": True, "streams": streams}
    for result in run_communicators(life, 3, channel=channel, collective=kind):
        assert isinstance(result, tuple), result
        num_zero_copy, num_copied = result
        assert num_zero_copy > 0
        assert num_copied == num_zero_copy, "over loopback the kernel always copies, and says so"


def test_a_peer_that_reads_nothing_of_what_was_sent_without_a_copy_is_named() -> None:
    heard = threading.Event()

    def answers(connection: socket.socket, group: str) -> None:
        count = 50_000
        for phase in range(2):
            said = words(count=count, phase=phase, group=group)._replace(total=4 * count)
            connection.sendall(pack(said) + bytes(4 * count))
        waits(heard)

    with beside(answers, timeout_s=1.0, zero_copy=True, send_buffer="4KiB") as transport:
        with pytest.raises(PeerTimeoutError, match="50000 float32") as raised:
            transport.all_reduce(torch.ones(200_000))
        heard.set()
    assert raised.value.peer == 1


def test_without_the_engine_nothing_is_sent_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "library", lambda: None)
    with pytest.raises(UnsupportedError, match=r"channel\.zero_copy: "):
        Tcp(zero_copy=True).require()
    Tcp().require()
    with pytest.raises(ValidationError):
        CHANNELS.parse({"kind": "grpc_bulk", "zero_copy": True})


def test_a_silent_peer_is_named_with_what_was_awaited() -> None:
    heard = threading.Event()
    with beside(lambda *_: waits(heard), timeout_s=0.3) as transport:
        with pytest.raises(
            PeerTimeoutError, match=r"all_reduce \(sum\) #1 of 100 float32 \(400 B\), message 0: 50 float32 timed out"
        ):
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
