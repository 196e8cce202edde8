"""The session service over real gRPC channels, with manual protobuf: the tests' client shares no code with it."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from switch_agg.errors import UnsupportedError
from switch_agg.switchml import switchml_pb2 as pb
from switch_agg.switchml.plane import SwitchMLDataPlane
from switch_agg.switchml.service import Servicer, sessions_served
from tests.loopback import free_port, own_address
from tests.switchml_client import Controller, message

MAC = 0x02000A000009
Client = Callable[[], Controller]


@dataclass
class Served:
    plane: SwitchMLDataPlane
    servicer: Servicer
    address: tuple[str, int]
    stack: ExitStack
    lines: list[str] = field(default_factory=list)

    def client(self) -> Controller:
        return self.stack.enter_context(Controller(self.address))

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline_s, self.lines
            time.sleep(0.002)


@contextmanager
def serving() -> Iterator[Served]:
    with ExitStack() as stack:
        plane = SwitchMLDataPlane(own_address(9))
        stack.callback(plane.close)
        address, lines = ("127.0.0.1", free_port()), list[str]()
        servicer = stack.enter_context(sessions_served(plane, address, mac=MAC, report=lines.append))
        yield Served(plane, servicer, address, stack.enter_context(ExitStack()), lines)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), str(caught.value.details())


def test_the_definitions_are_the_original_s() -> None:
    """package, services, methods, and every field's number and type: dev_root/protos/switchml.proto."""
    file = pb.DESCRIPTOR
    assert file.package == "switchml_proto"
    assert {
        f"{service.name}/{method.name}": (method.input_type.name, method.output_type.name)
        for service in file.services_by_name.values()
        for method in service.methods
    } == {
        "Session/RdmaSession": ("RdmaSessionRequest", "RdmaSessionResponse"),
        "Session/UdpSession": ("UdpSessionRequest", "UdpSessionResponse"),
        "Sync/Barrier": ("BarrierRequest", "BarrierResponse"),
        "Sync/Broadcast": ("BroadcastRequest", "BroadcastResponse"),
    }
    u32, u64, enum = 13, 4, 14
    expected: dict[str, list[tuple[str, int, int]]] = {
        "RdmaSessionRequest": [
            ("session_id", 1, u32),
            ("rank", 2, u32),
            ("num_workers", 3, u32),
            ("mac", 4, u64),
            ("ipv4", 5, u32),
            ("rkey", 6, u32),
            ("packet_size", 7, enum),
            ("message_size", 8, u32),
            ("qpns", 9, u32),
            ("psns", 10, u32),
        ],
        "RdmaSessionResponse": [
            ("session_id", 1, u64),
            ("mac", 2, u64),
            ("ipv4", 3, u32),
            ("rkey", 4, u32),
            ("qpns", 5, u32),
            ("psns", 6, u32),
        ],
        "UdpSessionRequest": [
            ("session_id", 1, u64),
            ("rank", 2, u32),
            ("num_workers", 3, u32),
            ("mac", 4, u64),
            ("ipv4", 5, u32),
            ("packet_size", 7, enum),
        ],
        "UdpSessionResponse": [("session_id", 1, u64), ("mac", 2, u64), ("ipv4", 3, u32)],
        "BarrierRequest": [("num_workers", 1, u32)],
        "BarrierResponse": [],
        "BroadcastRequest": [("value", 1, u64), ("rank", 2, u32), ("num_workers", 3, u32), ("root", 4, u32)],
        "BroadcastResponse": [("value", 1, u64)],
    }
    assert {
        name: [(each.name, each.number, each.type) for each in found.fields]
        for name, found in file.message_types_by_name.items()
    } == expected
    assert dict(pb.PacketSize.items()) == {"MTU_128": 0, "MTU_256": 1, "MTU_512": 2, "MTU_1024": 3}


def test_clients_set_their_session_up_twice_in_a_row(served: Served) -> None:
    """DpdkBackend::SetupSwitch of each, all at once; then all of them end, and begin anew."""
    for packet_numel, num_workers in ((64, 5), (256, 3)):
        with ExitStack() as stack, ThreadPoolExecutor(num_workers) as pool:
            clients = [stack.enter_context(Controller(served.address)) for _ in range(num_workers)]
            calls = [
                pool.submit(client.setup_switch, rank, num_workers, f"10.0.0.{rank + 1}", packet_numel)
                for rank, client in reversed(list(enumerate(clients)))
            ]
            assert {call.result() for call in calls} == {(served.plane.host, 48864)}
        [job] = served.plane.jobs
        assert job.workers == tuple(f"10.0.0.{rank + 1}" for rank in range(num_workers))
        assert job.num_elements == packet_numel
    assert served.plane.epoch(0) == 2
    assert sum("of 3 is" in line for line in served.lines) == 3


def test_the_answer_says_where_the_switch_is(served: Served) -> None:
    found = served.client().udp_session(2**63 + 1, 0, 2, 5, "10.0.0.1", 64)
    assert found == {1: 2**63 + 1, 2: MAC, 3: int.from_bytes(bytes(map(int, served.plane.host.split("."))), "big")}


def test_rank_0_twice_begins_twice(served: Served) -> None:
    client = served.client()
    for rank in (0, 1, 0):
        client.udp_session(1, rank, 2, 5, f"10.0.0.{rank}", 64)
    assert served.plane.jobs == (), "rank 1 belongs to the one before"
    client.udp_session(1, 1, 2, 5, "10.0.0.1", 64)
    assert len(served.plane.jobs) == 1


def test_two_clients_of_one_rank_are_reported_and_nobody_waits_for_them(served: Served) -> None:
    first, other = served.client(), served.client()
    first.udp_session(1, 0, 3, 5, "10.0.0.1", 64)
    first.udp_session(1, 1, 3, 5, "10.0.0.2", 64)
    waiting = other.begin("Sync/Barrier", message((1, 3)))
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    code, said = refused(lambda: served.client().udp_session(1, 1, 3, 5, "10.0.0.3", 64))
    assert (code, said) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "rank: 1 is 10.0.0.2's, and 10.0.0.3 says that it is its own",
    )
    code, said = refused(waiting.result)
    assert (code, "session 0x1 cannot begin: rank: 1 is" in said) == (grpc.StatusCode.ABORTED, True)


def test_somebody_of_another_session_disturbs_nobody(served: Served) -> None:
    client = served.client()
    client.udp_session(5, 0, 2, 5, "10.0.0.1", 64)
    waiting = client.begin("Sync/Barrier", message((1, 2)))
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    _, said = refused(lambda: served.client().udp_session(4, 1, 2, 5, "10.0.0.3", 64))
    assert said == "session_id: 0x4 is over, rank 0 has begun 0x5; start all clients anew"
    served.client().barrier(2)
    assert waiting.result() == b""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([(1, 1), (2, 0), (3, 2), (5, 0x0A000001), (7, 2)], "packet_size: 1 (64 elements) or 3 (256 elements) (got 2)"),
        ([(1, 1), (2, 0), (3, 2), (5, 0x0A000001), (7, 9)], "packet_size: 1 (64 elements) or 3 (256 elements) (got 9)"),
        ([(1, 1), (2, 0), (3, 2), (7, 1)], "ipv4: 0.0.0.0 is no worker's address"),
        ([(1, 1), (2, 0), (3, 2), (5, 0xE0000001), (7, 1)], "ipv4: 224.0.0.1 is no worker's address"),
        ([(1, 1), (2, 0), (3, 2), (5, 0xFFFFFFFF), (7, 1)], "ipv4: 255.255.255.255 is no worker's address"),
        ([(1, 1), (2, 2), (3, 2), (5, 0x0A000001), (7, 1)], "rank: 0 to 1, of 2 workers (got 2)"),
        ([(1, 1), (2, 0), (3, 40), (5, 0x0A000001), (7, 1)], "num_workers: 1 to 32 (got 40)"),
        ([], "packet_size: 1 (64 elements)"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(fields: list[tuple[int, int]], says: str, served: Served) -> None:
    code, said = refused(lambda: served.client().call("Session/UdpSession", message(*fields)))
    assert (code, says in said) == (grpc.StatusCode.INVALID_ARGUMENT, True), said


def test_the_other_backend_is_refused_by_name(served: Served) -> None:
    code, said = refused(lambda: served.client().call("Session/RdmaSession", message((1, 1), (3, 2))))
    assert (code, said) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "backend rdma is not served here: say `backend = dpdk` in switchml.cfg",
    )


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_whoever_goes_away_while_it_waits_leaves_nothing_behind(how: str, served: Served) -> None:
    """Neither a thread, nor a place at the barrier, nor a number for the next session."""
    stays = served.client()
    before = threading.active_count()
    for _ in range(20):
        client = Controller(served.address)
        calls = [
            client.begin("Sync/Barrier", message((1, 3))),
            client.begin("Sync/Broadcast", message((2, 1), (3, 3))),
        ]
        served.until(lambda: (served.servicer.barrier.num_waiting, served.servicer.broadcast.num_waiting) == (1, 1))
        for call in calls:
            call.cancel() if how == "cancel" else None
        client.close()
        served.until(lambda: (served.servicer.barrier.num_waiting, served.servicer.broadcast.num_waiting) == (0, 0))
    calls = [stays.begin("Sync/Barrier", message((1, 2)))]
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    assert not calls[0].done()
    served.client().barrier(2)
    calls[0].result()
    served.until(lambda: threading.active_count() <= before + 4)  # gRPC's own, of the channels that are open


def test_a_session_whose_rank_0_was_ended_gives_its_number_to_nobody(served: Served) -> None:
    old = Controller(served.address)
    assert old.broadcast(7, 0, 2) == 7
    old.udp_session(7, 0, 2, 5, "10.0.0.1", 64)
    waiting = old.begin("Sync/Barrier", message((1, 2)))
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    old.close()
    served.until(lambda: served.servicer.barrier.num_waiting == 0)
    served.until(waiting.done)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(served.client().setup_switch, 1, 2, "10.0.0.2", 64)
        served.until(lambda: served.servicer.broadcast.num_waiting == 1)
        pool.submit(served.client().setup_switch, 0, 2, "10.0.0.1", 64).result()
        late.result()
    assert len(served.plane.jobs) == 1


def test_who_waits_for_a_session_that_is_no_more_is_sent_away(served: Served) -> None:
    """Rank 0 crashed between two calls and begins anew; the others of its session still wait."""
    lost = served.client()
    waiting = lost.begin("Sync/Barrier", message((1, 2)))
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    served.client().broadcast(9, 0, 2)
    code, said = refused(waiting.result)
    assert (code, said) == (
        grpc.StatusCode.ABORTED,
        "rank 0 has begun another session; start this client again",
    )


def test_a_broadcast_that_cannot_be_sends_nobody_away(served: Served) -> None:
    waiting = served.client().begin("Sync/Barrier", message((1, 2)))
    served.until(lambda: served.servicer.barrier.num_waiting == 1)
    for fields in ([], [(2, 3), (3, 2), (4, 3)], [(3, 33)]):
        assert refused(lambda fields=fields: served.client().call("Sync/Broadcast", message(*fields)))[0] == (
            grpc.StatusCode.INVALID_ARGUMENT
        )
    assert served.servicer.barrier.num_waiting == 1
    served.client().barrier(2)
    waiting.result()


def test_thirty_two_clients_wait_at_once(served: Served) -> None:
    before = threading.active_count()
    client = served.client()
    calls = [client.begin("Sync/Barrier", message((1, 32))) for _ in range(31)]
    served.until(lambda: served.servicer.barrier.num_waiting == 31)
    assert threading.active_count() <= before + 2, "coroutines wait, not threads"
    client.barrier(32)
    assert [call.result() for call in calls] == [b""] * 31


def test_bytes_that_are_no_request_are_an_error_of_theirs_alone(served: Served) -> None:
    client = served.client()
    for method in ("Session/UdpSession", "Session/RdmaSession", "Sync/Barrier", "Sync/Broadcast"):
        for noise in (b"\xff" * 40, b"\x08", bytes(1 << 17)):
            with suppress(grpc.RpcError):
                client.call(method, noise)
    served.client().udp_session(1, 0, 1, 5, "10.0.0.1", 64)
    assert len(served.plane.jobs) == 1


def test_the_end_lets_nobody_wait() -> None:
    before = threading.active_count()
    with serving() as served:
        waiting = served.client().begin("Sync/Barrier", message((1, 2)))
        served.until(lambda: served.servicer.barrier.num_waiting == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    served.until(waiting.done)
    deadline_s = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline_s:
        gc.collect()  # gRPC's own thread of asynchronous servers ends with the last object of one
        time.sleep(0.01)
    assert threading.active_count() <= before, threading.enumerate()


def test_a_port_that_another_server_has_is_refused(served: Served) -> None:
    again = sessions_served(served.plane, served.address, mac=0, report=served.lines.append)
    with pytest.raises(UnsupportedError, match=r"--sessions 127\.0\.0\.1:\d+: Address already in use"), again:
        pass
