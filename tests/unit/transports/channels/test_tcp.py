"""TCP's own promises: what it costs on the wire, and what it does with data that is not ours."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from torch._C._distributed_c10d import FileStore

from tests.threads import groups, run_threads
from transports.channels._tcp import mesh
from transports.channels._tcp.congestion import congestion_of
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels._tcp.mesh import Mesh, connect_mesh
from transports.channels.base import CHANNELS, ForwardReverse, Header
from transports.channels.framing import GOODBYE, HEADER_BYTES, HELLO, OPERATIONS, group_id, pack
from transports.channels.ports import ports
from transports.channels.tcp import Tcp
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError, UnsupportedError
from transports.group import Group, published

ALL_REDUCE = OPERATIONS.index("all_reduce")


def header(count: int, sequence: int = 1) -> Header:
    return Header(7, sequence, ALL_REDUCE, 0, count, 0)


def open_tcp(group: Group) -> TcpEndpoint:
    endpoint = Tcp().open(group)
    assert isinstance(endpoint, TcpEndpoint)
    return endpoint


def finish(endpoint: TcpEndpoint, *tokens: int) -> None:
    left = set(tokens)
    while left:
        left -= {completion.token for completion in endpoint.progress(time.monotonic() + 20)}


def listening(group: Group) -> str:
    """Where rank 0 does, once it does."""
    return published(group, f"{group.name}/0", 0, "its address", time.monotonic() + 20)


def with_impostor(group: Group, impostor: Callable[[socket.socket], None]) -> Any:
    """Open rank 0 of two; rank 1 is a plain socket that says hello properly and then does what it likes."""

    def life() -> None:
        host, _, port = listening(group).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(pack(Header(group_id(group.name), 0, HELLO, 0, 2, 1)))
            assert len(connection.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
            impostor(connection)

    thread = threading.Thread(target=life)
    thread.start()
    try:
        with closing(open_tcp(group)) as endpoint:
            with pytest.raises(TransportError) as raised:
                finish(endpoint, endpoint.post_receive(1, header(100), memoryview(bytearray(100))))
            return raised.value
    finally:
        thread.join()


def test_garbage_is_refused() -> None:
    error = with_impostor(groups(2)[0], lambda connection: connection.sendall(b"\xff" * 200))
    assert isinstance(error, FrameMismatchError)
    assert "rank 1 sends what is not a frame header: ffff" in str(error)
    assert "rank 0 expects all_reduce (sum) #1" in str(error)


def test_a_corrupted_header_is_refused() -> None:
    corrupted = bytearray(pack(header(100)))
    corrupted[17] ^= 4
    error = with_impostor(groups(2)[0], lambda connection: connection.sendall(corrupted + bytes(100)))
    assert isinstance(error, FrameMismatchError)


@pytest.mark.parametrize("num_bytes", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99])
def test_a_truncated_message_is_a_lost_peer(num_bytes: int) -> None:
    message = pack(header(100)) + bytes(100)
    error = with_impostor(groups(2)[0], lambda connection: connection.sendall(message[:num_bytes]))
    assert isinstance(error, PeerLostError)
    assert error.peer == 1


def test_a_header_may_come_byte_by_byte() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in pack(header(100)) + bytes(50):
            connection.sendall(bytes([byte]))

    error = with_impostor(groups(2)[0], trickle)
    assert isinstance(error, PeerLostError)  # only because half of the payload was never sent


@pytest.mark.parametrize(
    "instead",
    [b"", pack(header(100))[: HEADER_BYTES // 2], pack(Header(group_id("any"), 0, GOODBYE, 0, 0, 0))],
    ids=["nothing", "half a header", "a goodbye"],
)
def test_a_peer_that_leaves_between_messages_of_an_operation_is_lost_at_once(instead: bytes) -> None:
    """Its first message has shown that it follows our schedule, so the second one is awaited whole."""
    first, second = (Header(7, 1, ALL_REDUCE, 0, 100, phase, total=200) for phase in (0, 1))
    members = groups(2)

    def life() -> None:
        host, _, port = listening(members[0]).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(pack(Header(group_id(members[0].name), 0, HELLO, 0, 2, 1)))
            assert len(connection.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
            connection.sendall(pack(first) + bytes(range(100)))
            heard.wait(20)
            connection.sendall(instead)

    heard = threading.Event()
    thread = threading.Thread(target=life)
    thread.start()
    with closing(open_tcp(members[0])) as endpoint:
        views = [memoryview(bytearray(100)) for _ in range(2)]
        tokens = [endpoint.post_receive(1, each, view) for each, view in zip((first, second), views, strict=True)]
        finish(endpoint, tokens[0])
        assert bytes(views[0]) == bytes(range(100))
        threading.Timer(0.1, heard.set).start()
        with pytest.raises(PeerLostError):
            finish(endpoint, tokens[1])
    thread.join()


def test_unknown_senders_are_turned_away() -> None:
    members = groups(2)
    name = members[0].name
    lies = [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"",
        bytes(HEADER_BYTES),
        pack(Header(group_id("another group"), 0, HELLO, 0, 2, 1)),
        pack(Header(group_id(name), 0, HELLO, 0, 3, 1)),
        pack(Header(group_id(name), 0, HELLO, 0, 2, 0)),
        pack(Header(group_id(name), 0, HELLO, 0, 2, 2)),
        pack(header(0)),
    ]

    def unknown_connections() -> None:
        host, _, port = listening(members[0]).rpartition(":")
        silent = socket.create_connection((host, int(port)), timeout=20)
        for lie in lies:
            # The door may be closed while an unknown connection is still sending.
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(lie)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b"", "an unknown connection was answered"
        other.start()
        other.join()
        silent.close()

    opened: list[TcpEndpoint] = []
    other = threading.Thread(target=lambda: opened.append(open_tcp(members[1])))
    crowd = threading.Thread(target=unknown_connections)
    crowd.start()
    endpoint = open_tcp(members[0])
    crowd.join()
    assert endpoint.num_unknown_connections == len(lies) + 1
    for each in (endpoint, *opened):
        each.close()


def test_an_address_that_somebody_else_has_taken_over_is_noticed() -> None:
    member = groups(2)[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        member.store.set(f"{member.name}/0", f"127.0.0.1:{server.getsockname()[1]}")

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(pack(Header(group_id("another group"), 0, HELLO, 0, 2, 0)))
                connection.recv(HEADER_BYTES)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerLostError, match="somebody else listens"):
            Tcp().open(member)
        thread.join()


def test_the_rendezvous_keeps_to_the_groups_timeout_not_the_stores(tmp_path: Path) -> None:
    """torch's stores wait for five minutes unless they are configured otherwise."""
    store = FileStore(str(tmp_path / "store"), 2)
    member = Group(name="g", rank=1, size=2, address="127.0.0.1", store=store, timeout_s=0.3)
    started_s = time.monotonic()
    with pytest.raises(PeerTimeoutError, match="its address in the store") as raised:
        Tcp().open(member)
    assert raised.value.peer == 0
    assert time.monotonic() - started_s < 10


def test_a_dead_address_is_a_lost_peer() -> None:
    member = groups(2)[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    member.store.set(f"{member.name}/0", f"127.0.0.1:{port}")
    with pytest.raises(PeerLostError, match="refused") as raised:
        Tcp().open(member)
    assert raised.value.peer == 0


def test_an_address_that_is_not_ours_cannot_be_listened_on() -> None:
    member = Group(name="g", rank=0, size=1, address="192.0.2.1", store=groups(1)[0].store, timeout_s=1)
    with pytest.raises(TransportError, match=r"cannot listen on 192\.0\.2\.1"):
        Tcp().open(member)


def ends(endpoint_of: Callable[[Group], Any], members: list[Group]) -> list[set[tuple[Any, Any]]]:
    """Both addresses of every connection of each member."""
    opened = run_threads(endpoint_of, members)
    try:
        return [{(each.getsockname(), each.getpeername()) for each in endpoint.sockets.values()} for endpoint in opened]
    finally:
        for endpoint in opened:
            endpoint.close()


def test_a_group_of_the_same_name_gets_the_same_ports_again() -> None:
    name = f"group {os.getpid()}"

    def members() -> list[Group]:
        return [replace(member, name=name, address=f"127.7.0.{member.rank + 1}") for member in groups(3)]

    def mesh_of(member: Group) -> Mesh:
        return connect_mesh(member, lambda made: made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))

    first = ends(mesh_of, members())
    assert [len(each) for each in first] == [2, 2, 2]
    assert ends(mesh_of, members()) == first


def test_all_peers_are_called_at_once() -> None:
    """On long links a member of sixteen waited for fifteen round trips, one after the other. Rank 0's queue is full,
    so that its handshake lasts; rank 1 is called, for all that."""
    member = groups(3, timeout_s=3.0)[2]
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        for rank, server in enumerate((full, other)):
            member.store.set(f"{member.name}/{rank}", f"127.0.0.1:{server.getsockname()[1]}")
        other.settimeout(1.5)
        failures: list[BaseException] = []

        def connect() -> None:
            try:
                connect_mesh(member, lambda _: None)
            except TransportError as error:
                failures.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        try:
            other.accept()[0].close()
            assert not failures
        finally:
            thread.join()
    (error,) = failures
    assert isinstance(error, PeerTimeoutError)
    assert error.peer == 0


def test_ports_are_the_kernels_own_and_the_last_resort_is_any() -> None:
    drawn = list(ports("g", 0, 1, (40_000, 40_999)))
    assert all(40_000 <= port <= 40_999 for port in drawn[:-1])
    assert drawn[-1] == 0
    assert drawn == list(ports("g", 0, 1, (40_000, 40_999)))
    others: list[tuple[str, int, int | None]] = [("h", 0, 1), ("g", 1, 1), ("g", 0, None)]
    for other in others:
        assert list(ports(*other, (40_000, 40_999))) != drawn


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(mesh, "ports", lambda *_: iter((port, 0)))
        opened = run_threads(Tcp().open, groups(2))
        for endpoint in opened:
            endpoint.close()


def test_goodput_is_that_of_full_segments() -> None:
    assert Tcp().goodput_fraction(1500) == 1448 / 1514
    assert Tcp().goodput_fraction(9000) == 8948 / 9014


def test_wire_bytes_count_every_segment() -> None:
    assert Tcp().wire_bytes(1448, 1500) == ForwardReverse(1514, 66)
    assert Tcp().wire_bytes(1449, 1500) == ForwardReverse(1449 + 2 * 66, 66)


def test_the_kernel_counts_acknowledgements() -> None:
    def body(group: Group) -> Any:
        with closing(open_tcp(group)) as endpoint:
            view = memoryview(bytearray(1 << 22))
            post = endpoint.post_send if group.rank == 0 else endpoint.post_receive
            finish(endpoint, post(1 - group.rank, header(1 << 22), view))
            return endpoint.statistics()[1 - group.rank], endpoint.congestion()

    (sender, congestion), (receiver, _) = run_threads(body, groups(2))
    assert sender.payload_bytes_sent == (1 << 22) + HEADER_BYTES
    assert receiver.acknowledgement_bytes_sent > sender.acknowledgement_bytes_sent >= 0
    # Whole headers, and options where something came out of order, as it may even on loopback.
    assert receiver.acknowledgement_bytes_sent >= 66
    assert receiver.retransmitted_bytes == 0  # it has sent no data; a busy loopback may well repeat the sender's
    assert set(congestion) == {1}
    assert congestion[1].isalnum()


@pytest.mark.parametrize("sizes", [(64, 128), (24 * 1024, 16 * 1024)])
def test_buffers_are_what_was_requested_however_large(sizes: tuple[int, int]) -> None:
    """Beyond net.core.wmem_max and rmem_max, too, which cut plain options off without a word."""

    def body(group: Group) -> tuple[int, int]:
        channel = CHANNELS.parse({"kind": "tcp", "send_buffer": f"{sizes[0]}KiB", "receive_buffer": f"{sizes[1]}KiB"})
        with closing(channel.open(group)) as endpoint:
            assert isinstance(endpoint, TcpEndpoint)
            connection = endpoint._peers[1 - group.rank].socket
            return (
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            )

    # The kernel doubles what is requested (socket(7)).
    assert run_threads(body, groups(2)) == [(2 * sizes[0] * 1024, 2 * sizes[1] * 1024)] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"streams": 0},
        {"streams": 65},
        {"pipes": 4},
        {"send_buffer": "0B"},
        {"receive_buffer": "2GiB"},
        {"congestion": ""},
        {"zero_copy": "often"},
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CHANNELS.parse({"kind": "tcp", **options})


def test_small_buffers_carry_large_messages() -> None:
    def body(group: Group) -> bool:
        channel = CHANNELS.parse({"kind": "tcp", "send_buffer": "16KiB", "receive_buffer": "16KiB"})
        with closing(channel.open(group)) as endpoint:
            assert isinstance(endpoint, TcpEndpoint)
            sent = memoryview(os.urandom(1000) * 1000)
            received = memoryview(bytearray(len(sent)))
            peer = 1 - group.rank
            finish(
                endpoint,
                endpoint.post_send(peer, header(len(sent)), sent),
                endpoint.post_receive(peer, header(len(sent)), received),
            )
            return len(set(received)) > 100

    assert run_threads(body, groups(2)) == [True, True]


def test_a_small_message_after_a_large_one_wakes_its_receiver() -> None:
    """The kernel's low-water mark, raised for the large one, must not hide the small one."""

    def body(group: Group) -> None:
        with closing(open_tcp(group)) as endpoint:
            for sequence, size in enumerate((1 << 22, 1, 1 << 21, 5), start=1):
                view = memoryview(bytearray(size))
                post = endpoint.post_send if group.rank == sequence % 2 else endpoint.post_receive
                finish(endpoint, post(1 - group.rank, header(size, sequence), view))

    assert run_threads(body, groups(2, timeout_s=10)) == [None, None]


RANK_1 = """
import os, signal, sys
from transports.channels.base import Group
from transports.channels.memory import MemoryStore
from transports.channels.tcp import Tcp
name, published = sys.argv[1:]
store = MemoryStore()
store.set(f"{name}/0", published)
endpoint = Tcp().open(Group(name=name, rank=1, size=2, address="127.0.0.1", store=store, timeout_s=20))
worker = os.fork()
if worker:
    print(worker, flush=True)
signal.pause()
"""


def test_a_killed_process_is_missed_though_its_child_lives_on() -> None:
    """A data loader's worker, forked while the group is open, must not keep its parent's connections alive."""
    member = groups(2)[0]
    opened: list[TcpEndpoint] = []
    accepting = threading.Thread(target=lambda: opened.append(open_tcp(member)))
    accepting.start()
    argv = [sys.executable, "-c", RANK_1, member.name, listening(member)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        accepting.join()
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            with closing(opened[0]) as endpoint:
                token = endpoint.post_receive(1, header(1), memoryview(bytearray(1)))
                with pytest.raises(PeerLostError):
                    finish(endpoint, token)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_streams_are_taken_in_turn() -> None:
    sizes = [40_000, 20_000, 60_000, 0, 5_000]

    def life(group: Group) -> tuple[int, list[int]]:
        with closing(Tcp(streams=3).connect(group)) as endpoint:
            assert group.rank or len(endpoint._peers) == 3
            for number, size in enumerate(sizes):
                if group.rank == 0:
                    finish(endpoint, endpoint.post_send(1, header(size, number), memoryview(bytes(size))))
                else:
                    seen = endpoint.peek(0, time.monotonic() + 20)
                    assert seen is not None
                    assert seen.sequence == number, "the next message waits on the next stream"
                    finish(endpoint, endpoint.post_receive(0, header(size, number), memoryview(bytearray(size))))
            (total,) = endpoint.statistics().values()
            each = [peer.native.sent_bytes + peer.native.received_bytes for peer in endpoint._peers.values()]
            return total.payload_bytes_sent + total.payload_bytes_received, each

    for total, each in run_threads(life, groups(2)):
        assert each == [40_000 + 2 * HEADER_BYTES, 25_000 + 2 * HEADER_BYTES, 60_000 + HEADER_BYTES]
        assert total == sum(each)


def test_each_stream_ends_with_a_segment_of_its_own() -> None:
    whole, split = Tcp().wire_bytes(4 * 1448, 1500), Tcp(streams=4).wire_bytes(4 * 1448 + 1, 1500)
    assert split.forward == whole.forward + 1 + 4 * 66


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_every_connection_has_the_congestion_control_that_was_requested(congestion: str, streams: int) -> None:
    def life(group: Group) -> set[str]:
        with closing(Tcp(streams=streams, congestion=congestion).connect(group)) as endpoint:
            assert len(endpoint._peers) == streams
            return {congestion_of(peer.socket) for peer in endpoint._peers.values()}

    assert run_threads(life, groups(2)) == [{congestion}] * 2


def test_a_congestion_control_that_cannot_be_had_is_reported_and_leaves_nothing() -> None:
    def life(group: Group) -> str:
        with pytest.raises(UnsupportedError) as raised:
            Tcp(congestion="quick").open(group)
        return str(raised.value)

    for reported in run_threads(life, groups(2)):
        assert reported.startswith("channel.congestion: quick cannot be had")
        assert "modprobe tcp_quick" in reported


def test_who_asks_for_no_congestion_control_gets_the_hosts() -> None:
    with socket.socket() as plain:
        expected = congestion_of(plain)

    def life(group: Group) -> dict[int, str]:
        with closing(Tcp().connect(group)) as endpoint:
            return endpoint.congestion()

    assert run_threads(life, groups(2)) == [{1: expected}, {0: expected}]


def test_an_event_without_an_end_is_no_end() -> None:
    """The ends of sends without a copy come as EPOLLERR, too."""
    met = threading.Barrier(2)

    def life(group: Group) -> None:
        with closing(Tcp().connect(group)) as endpoint:
            met.wait(20)
            for peer in endpoint._peers.values():
                endpoint._examine(peer)
                assert peer.farewell is None
                assert endpoint.departure(peer.rank) is None
            met.wait(20)

    assert run_threads(life, groups(2)) == [None, None]
