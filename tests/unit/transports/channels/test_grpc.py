"""gRPC's own promises: long tensors travel as several messages, unknown connections are refused, and what it costs."""

import socket
import threading
import time
from contextlib import closing

import grpc as grpc_library
import pytest
from pydantic import ValidationError

from tests.threads import groups, run_threads
from transports.channels._tcp.congestion import congestion_of
from transports.channels.base import CHANNELS, Header
from transports.channels.framing import HELLO, OPERATIONS, group_id, pack
from transports.channels.grpc import Grpc
from transports.channels.tcp import Tcp
from transports.errors import FrameMismatchError, PeerLostError, TransportError, UnsupportedError
from transports.group import Group, published

METHOD = "/testbed.Transport/Exchange"
ALL_REDUCE = OPERATIONS.index("all_reduce")


def header(count: int) -> Header:
    return Header(7, 1, ALL_REDUCE, 0, count, 0)


def finish(endpoint, *tokens: int) -> None:  # type: ignore[no-untyped-def]
    left = set(tokens)
    while left:
        left -= {completion.token for completion in endpoint.progress(time.monotonic() + 20)}


def listening(group: Group) -> str:
    return published(group, f"{group.name}/0/grpc", 0, "its address", time.monotonic() + 20)


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5 * 1024, 300_001])
def test_a_message_longer_than_a_chunk_arrives_whole(count: int) -> None:
    payload = bytes(index % 251 for index in range(count))

    def life(group: Group) -> bytes:
        with closing(Grpc.model_validate({"chunk": "1KiB"}).open(group)) as endpoint:
            if group.rank == 0:
                finish(endpoint, endpoint.post_send(1, header(count), memoryview(payload)))
                return payload
            received = bytearray(count)
            finish(endpoint, endpoint.post_receive(0, header(count), memoryview(received)))
            return bytes(received)

    assert run_threads(life, groups(2)) == [payload, payload]


def test_a_sender_waits_for_a_receiver_that_is_busy_and_both_come_to_an_end() -> None:
    """Far more than the windows hold, all of it sent before the first receive is posted."""
    count, sending = 32 << 20, threading.Event()

    def life(group: Group) -> int:
        with closing(Grpc().open(group)) as endpoint:
            view = memoryview(bytearray(count))
            if group.rank == 0:
                token = endpoint.post_send(1, header(count), view)
                sending.set()
                finish(endpoint, token)
            else:
                sending.wait()
                finish(endpoint, endpoint.post_receive(0, header(count), view))
            return len(view)

    assert run_threads(life, groups(2)) == [count, count]


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1", pack(Header(1, 0, HELLO, 0, 2, 1))])
def test_unknown_senders_are_refused_and_disturb_nobody(said: bytes) -> None:
    first, second = groups(2)
    refused: list[object] = []

    def life(group: Group) -> None:
        if group.rank == 1:
            with grpc_library.insecure_channel(listening(group)) as unknown:
                call = unknown.stream_stream(METHOD, None, None)(iter([said]))
                try:
                    next(iter(call))
                except grpc_library.RpcError as error:
                    refused.append(error.code())
        with closing(Grpc().open(group)) as endpoint:
            finish(
                endpoint,
                (endpoint.post_send if group.rank else endpoint.post_receive)(
                    1 - group.rank, header(1), memoryview(bytearray(1))
                ),
            )

    assert run_threads(life, [first, second]) == [None, None]
    assert refused == [grpc_library.StatusCode.PERMISSION_DENIED]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([b"short"], FrameMismatchError),
        ([bytes(40)], FrameMismatchError),
        ([pack(header(4)), b"too many"], FrameMismatchError),
        ([pack(header(4)), b"ab"], PeerLostError),
    ],
)
def test_a_member_that_speaks_nonsense_is_an_error(sent: list[bytes], expected: type[TransportError]) -> None:
    group, impostor = groups(2)
    reported = threading.Event()

    def life(member: Group) -> None:
        if member.rank == 1:
            with grpc_library.insecure_channel(listening(member)) as channel:
                words = [pack(Header(group_id(member.name), 0, HELLO, 0, 2, 1)), *sent]
                list(channel.stream_stream(METHOD, None, None)(iter(words)))
                reported.wait()
            return
        with closing(Grpc().open(member)) as endpoint, pytest.raises(expected):
            finish(endpoint, endpoint.post_receive(1, header(4), memoryview(bytearray(4))))
        reported.set()

    results = run_threads(life, [group, impostor])
    assert results[0] is None


def test_framing_costs_less_than_a_thousandth_of_what_tcp_does() -> None:
    payload = 25_000_000
    plain, framed = Tcp().wire_bytes(payload, 1500).forward, Grpc().wire_bytes(payload, 1500).forward
    assert 1 < framed / plain < 1.001


def test_a_chunk_is_below_grpc_s_limit() -> None:
    with pytest.raises(ValidationError, match="less than or equal to"):
        Grpc.model_validate({"chunk": "4MiB"})


def test_another_congestion_control_than_requested_is_refused() -> None:
    with socket.socket() as plain:
        usual = congestion_of(plain)

    everybody = threading.Barrier(2)

    def life(group: Group) -> None:
        with closing(CHANNELS.parse({"kind": "grpc", "congestion": usual}).open(group)):
            everybody.wait(20)

    assert run_threads(life, groups(2)) == [None, None]
    refuse_another_than(usual)


def test_who_refuses_while_a_stream_is_being_taken_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine close() joined a reader that had not been started yet: RuntimeError."""
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        if thread.name.startswith("gRPC from"):
            time.sleep(0.3)
        start(thread)

    with socket.socket() as plain:
        usual = congestion_of(plain)
    monkeypatch.setattr(threading.Thread, "start", start_late)
    refuse_another_than(usual)


def refuse_another_than(usual: str) -> None:
    other = next(name for name in ("reno", "cubic") if name != usual)
    channel = CHANNELS.parse({"kind": "grpc", "congestion": other})
    refused = run_threads(lambda group: channel.open(group).close(), groups(2))
    assert {type(each) for each in refused} <= {UnsupportedError, PeerLostError}
    (reported, *_) = (str(each) for each in refused if isinstance(each, UnsupportedError))
    assert reported.startswith("channel.congestion: gRPC's connections to rank ")
