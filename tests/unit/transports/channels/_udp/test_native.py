"""The native mover and its twin in Python put the same bytes on the wire, and take the same from it."""

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from torch._C._distributed_c10d import HashStore

from switch_agg.core import Datagram
from switch_agg.driver import open_socket
from switch_agg.faults import corrupt
from switch_agg.window import FixedWindow
from transports.channels._udp.connection import Connection
from transports.channels._udp.native import Alarm, Receiver, Scratch, Waiter, send_run
from transports.channels._udp.pacing import Pacer, WindowPace
from transports.channels._udp.wire import Kind, pack, unpack, unpack_acknowledged
from transports.channels.framing import HEADER_BYTES
from transports.channels.udp import _bound
from transports.group import Group

FRAME = bytes(range(HEADER_BYTES))


def connection(packet_bytes: int) -> Connection:
    return Connection(
        peer=("127.0.0.1", 0),
        local=77,
        remote=77,
        packet_bytes=packet_bytes,
        window=FixedWindow(10_000),
        pace=WindowPace(),
        pacer=Pacer(),
        now_s=0.0,
    )


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as opened:
        first, second = (opened.enter_context(open_socket(("127.0.0.1", 0))) for _ in range(2))
        first.connect(second.getsockname())
        second.connect(first.getsockname())
        yield first, second


def next_datagram(receiving: socket.socket) -> bytes:
    Waiter([receiving.fileno()]).wait(10)
    return receiving.recv(65536)


@pytest.mark.parametrize("packet_bytes", [7, 33, 64, 1448])
@pytest.mark.parametrize("num_bytes", [0, 1, 1500, 9001])
def test_a_run_goes_out_as_the_twin_writes_it(
    packet_bytes: int, num_bytes: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender = connection(packet_bytes)
    sender.outgoing.post(FRAME, memoryview(random.Random(1).randbytes(num_bytes)), None)
    while (run := sender.next_run(0.0)) is not None:
        assert send_run(pair[0].fileno(), sender, run) == run.num_packets
        for expected in sender.datagrams_of(run):
            assert next_datagram(pair[1]) == expected


def test_what_comes_is_taken_as_the_twin_takes_it(pair: tuple[socket.socket, socket.socket]) -> None:
    chance = random.Random(2)
    sender = connection(100)
    for size in (0, 5, 1000, 20_000):
        sender.outgoing.post(FRAME, memoryview(chance.randbytes(size)), None)
    datagrams = []
    while (run := sender.next_run(0.0)) is not None:
        datagrams += sender.datagrams_of(run)
    datagrams += chance.sample(datagrams, 20)
    datagrams += [corrupt(datagram, chance.getrandbits(12)) for datagram in datagrams[:20]]
    datagrams += [datagram[:-1] for datagram in datagrams[:5]]
    datagrams += [b"", b"x", pack(76, 1, Kind.DATA, 0, b"of another"), pack(77, 0, Kind.PING, 0)]
    datagrams += [pack(77, 9, Kind.DATA, 2**40, b"not allowed"), pack(77, 9, Kind.DATA, 2**64 - 1, b"it wraps")]
    chance.shuffle(datagrams)
    native, twin = connection(100), connection(100)
    views: list[list[bytearray]] = [[], []]
    for each, into in zip((native, twin), views, strict=True):
        for token, size in enumerate((0, 5, 1000)):
            into.append(bytearray(size))
            each.incoming.expect(FRAME, memoryview(into[-1]), token)
    receiver = Receiver(native, pair[1].fileno(), Scratch())
    for datagram in datagrams:
        pair[0].send(datagram)
    waiter = Waiter([pair[1].fileno()])
    while waiter.wait(0.05):
        assert receiver.receive().error == 0
    twin.receive([Datagram(("127.0.0.1", 0), datagram) for datagram in datagrams], 1.0)
    assert views[0] == views[1]
    assert native.completions == twin.completions == [0, 1, 2]
    assert native.num_rejected == twin.num_rejected > 25
    assert (native.incoming.received.starts, native.incoming.received.ends) == (
        twin.incoming.received.starts,
        twin.incoming.received.ends,
    )
    said = [(each.kind, each.number, each.offset) for each in map(unpack, native.controls(time.monotonic() + 1))]
    assert said == [(each.kind, each.number, each.offset) for each in map(unpack, twin.controls(2.0))]
    last = [bytearray(20_000), bytearray(20_000)]
    native.incoming.expect(FRAME, memoryview(last[0]), 3)
    twin.incoming.expect(FRAME, memoryview(last[1]), 3)
    assert last[0] == last[1]
    assert native.completions[-1] == twin.completions[-1] == 3


def test_waiting_ends_with_the_time(pair: tuple[socket.socket, socket.socket]) -> None:
    waiter = Waiter([opened.fileno() for opened in pair])
    started_s = time.monotonic()
    assert waiter.wait(0.01) == []
    assert time.monotonic() - started_s >= 0.01
    pair[0].send(b"x")
    assert waiter.wait(10) == [1]


def test_a_quiet_wait_looks_at_the_last_descriptor_only(pair: tuple[socket.socket, socket.socket]) -> None:
    waiter = Waiter([opened.fileno() for opened in pair])
    pair[1].send(b"x")
    started_s = time.monotonic()
    assert waiter.wait(10, quiet_s=0.02) == [0]
    assert time.monotonic() - started_s >= 0.02
    pair[0].send(b"x")
    assert waiter.wait(10, quiet_s=10) == [0, 1]


def test_a_run_is_longer_than_a_datagram_of_the_kernels(pair: tuple[socket.socket, socket.socket]) -> None:
    sender = connection(1448)
    sender.outgoing.post(FRAME, memoryview(random.Random(1).randbytes(200_000)), None)
    sent: list[bytes] = []
    while (run := sender.next_run(0.0)) is not None:
        assert send_run(pair[0].fileno(), sender, run) == run.num_packets
        sent += sender.datagrams_of(run)
    assert [next_datagram(pair[1]) for _ in sent] == sent


def test_the_kernel_says_when_what_is_read_late_has_come() -> None:
    """On a socket as channels have it: else a reader that waits for a core is taken for a queue in the network."""
    group = Group(name="stamps", rank=0, size=2, address="127.0.0.1", store=HashStore(), timeout_s=10.0)
    sender, receiver = connection(1448), connection(1448)
    payload = memoryview(bytes(1000))
    sender.outgoing.post(FRAME, payload, None)
    receiver.incoming.expect(FRAME, memoryview(bytearray(1000)), 0)
    run = sender.next_run(0.0)
    assert run is not None
    with _bound(group, 1) as reading, open_socket(("127.0.0.1", 0)) as sending:
        sending.connect(reading.getsockname())
        _await_stamps()
        assert send_run(sending.fileno(), sender, run) == 1
        time.sleep(0.2)
        Receiver(receiver, reading.fileno(), Scratch()).receive()
    (acknowledgement,) = (unpack(each) for each in receiver.controls(time.monotonic() + 1.0))
    said = unpack_acknowledged(acknowledgement.number, acknowledgement.body)
    assert list(said.ranges) == [(0, 0)]
    assert said.delay_s >= 1.15


def _await_stamps() -> None:
    """Until the kernel stamps what arrives: it begins a little after the first socket has requested it
    (net_enable_timestamp in net/core/dev.c). Until then the stamp is of the reading."""
    deadline_s = time.monotonic() + 10.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        probe.settimeout(10.0)
        probe.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        while time.monotonic() < deadline_s:
            probe.sendto(b"?", probe.getsockname())
            time.sleep(0.05)
            _, ((_, _, stamp),), _, _ = probe.recvmsg(16, 64)
            seconds, nanoseconds = struct.unpack("=qq", stamp)
            if time.time() - (seconds + nanoseconds * 1e-9) > 0.04:
                return
    raise AssertionError("the kernel does not stamp what arrives")


def test_an_alarm_goes_off_once_its_time_is_over_unless_it_is_cleared() -> None:
    alarm = Alarm()
    waiter = Waiter([alarm.descriptor])
    try:
        alarm.set(0.02)
        set_s = time.monotonic()
        assert waiter.wait(10) == [0]
        assert time.monotonic() - set_s >= 0.02
        alarm.clear()  # it has gone off, which is forgotten
        assert waiter.wait(0) == []
        alarm.set(0.02)
        alarm.clear()
        assert waiter.wait(0.05) == []
    finally:
        os.close(alarm.descriptor)
