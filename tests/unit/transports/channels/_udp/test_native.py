"""The engine and its sockets: what it puts on the wire, what it takes from it, when it waits."""

import ctypes
import errno
import math
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
from tests.udp_twin import Kind, pack, unpack, unpack_acknowledged
from transports.channels._udp import native
from transports.channels._udp.connection import WINDOW_PACE, Connection
from transports.channels._udp.native import Alarm, Completions, Pacer, Waiter, library
from transports.channels.framing import HEADER_BYTES
from transports.channels.udp import _bound
from transports.group import Group

FRAME = bytes(range(HEADER_BYTES))


def connection(packet_bytes: int, pacer: Pacer | None = None) -> Connection:
    return Connection(
        peer=("127.0.0.1", 0),
        local=77,
        remote=77,
        packet_bytes=packet_bytes,
        window=FixedWindow(10_000),
        pace=WINDOW_PACE,
        pacer=pacer or Pacer(),
        completions=Completions(),
        now_s=time.monotonic(),
    )


class Engine:
    """One connection and its socket."""

    def __init__(self, driven: Connection, opened: socket.socket) -> None:
        self.connection = driven
        self._buffers = (ctypes.c_uint8 * native.BUFFERS_BYTES)()
        self.peer = native.PeerState(connection=driven.address, socket=opened.fileno())
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.alarm = Alarm()
        self.state = native.EndpointState(
            peers=ctypes.addressof(self.peer),
            buffers=ctypes.addressof(self._buffers),
            completions=driven.completions.address,
            dilation=1.0,
            num_peers=1,
            wake=self.wake,
            alarm=self.alarm.descriptor,
        )

    def look(self) -> int:
        self.peer.due_s = 0.0
        return int(library().endpoint_look(ctypes.byref(self.state), ctypes.byref(ctypes.c_double())))

    def rest_s(self, due_in_s: float) -> float:
        return float(library().endpoint_rest_s(ctypes.byref(self.state), due_in_s))


UDP_GRO = 104  # linux/udp.h


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as opened:
        first, second = (opened.enter_context(open_socket(("127.0.0.1", 0))) for _ in range(2))
        first.connect(second.getsockname())
        second.connect(first.getsockname())
        # Tests read the second one a datagram at a time; the engine takes messages of several.
        second.setsockopt(socket.SOL_UDP, UDP_GRO, 0)
        # Before it was connected anybody could send to it, and who sent to the port's last owner did once.
        for each in (first, second):
            while Waiter([each.fileno()]).wait(0.0):
                each.recv(65536)
        yield first, second


def next_datagram(receiving: socket.socket) -> bytes:
    assert Waiter([receiving.fileno()]).wait(10)
    return receiving.recv(65536)


@pytest.mark.parametrize("packet_bytes", [7, 33, 64, 1448])
@pytest.mark.parametrize("num_bytes", [0, 1, 1500, 9001, 200_000])
def test_what_goes_out_is_what_was_posted(
    packet_bytes: int, num_bytes: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    """Read by the twin; the longest is more than one datagram of the kernel's. Without sockets it is the same."""
    if num_bytes // packet_bytes > 1000:
        num_bytes = 1000 * packet_bytes
    payload = random.Random(1).randbytes(num_bytes)
    one, other = connection(packet_bytes), connection(packet_bytes)
    for sender in (one, other):
        sender.post(FRAME, memoryview(payload), None)
    engine, stream, number = Engine(one, pair[0]), b"", 0
    for datagram in other.transmit(time.monotonic()):
        while not Waiter([pair[1].fileno()]).wait(0.0):
            assert engine.look() == native.ONGOING
        assert next_datagram(pair[1]) == datagram.data
        packet = unpack(datagram.data)
        assert (packet.connection, packet.number, packet.kind, packet.offset) == (77, number, Kind.DATA, len(stream))
        assert len(packet.body) == packet_bytes or len(stream) + len(packet.body) == HEADER_BYTES + num_bytes
        stream, number = stream + bytes(packet.body), number + 1
    assert stream == FRAME + payload


def test_what_comes_is_taken_through_sockets_as_without(pair: tuple[socket.socket, socket.socket]) -> None:
    chance = random.Random(2)
    sender = connection(100)
    sizes = (0, 5, 1000, 20_000)
    for size in sizes:
        sender.post(FRAME, memoryview(chance.randbytes(size)), None)
    datagrams = [datagram.data for datagram in sender.transmit(0.0)]
    datagrams += chance.sample(datagrams, 20)
    datagrams += [corrupt(datagram, chance.getrandbits(12)) for datagram in datagrams[:20]]
    datagrams += [datagram[:-1] for datagram in datagrams[:5]]
    datagrams += [b"", b"x", pack(76, 1, Kind.DATA, 0, b"of another"), pack(77, 0, Kind.PING, 0)]
    datagrams += [pack(77, 9, Kind.DATA, 2**40, b"not allowed"), pack(77, 9, Kind.DATA, 2**64 - 1, b"it wraps")]
    chance.shuffle(datagrams)
    driven, twin = connection(100), connection(100)
    views: list[list[bytearray]] = [[], []]
    for each, into in zip((driven, twin), views, strict=True):
        for token, size in enumerate(sizes[:3]):
            into.append(bytearray(size))
            each.expect(FRAME, memoryview(into[-1]), token)
    engine = Engine(driven, pair[1])
    for datagram in datagrams:
        pair[0].send(datagram)
    while Waiter([pair[1].fileno()]).wait(0.05):
        assert engine.look() == native.ONGOING
    twin.receive([Datagram(("127.0.0.1", 0), datagram) for datagram in datagrams], time.monotonic())
    assert views[0] == views[1]
    assert driven.completions.take() == twin.completions.take() == [0, 1, 2]
    assert driven.num_rejected == twin.num_rejected > 25
    for received in (driven.state.incoming.received, twin.state.incoming.received):
        assert [(each.start, each.end) for each in received.items[: received.num]] == [(0, 21_005 + 4 * HEADER_BYTES)]
    last = [bytearray(20_000), bytearray(20_000)]
    driven.expect(FRAME, memoryview(last[0]), 3)
    twin.expect(FRAME, memoryview(last[1]), 3)
    assert last[0] == last[1]
    assert driven.completions.take() == twin.completions.take() == [3]


def test_a_packet_that_no_interface_takes_is_no_loss_of_the_peer(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: IP_PMTUDISC_DO
    sender = connection(65_500)  # more than a datagram can be
    sender.post(FRAME, memoryview(bytes(65_500)), 1)
    engine = Engine(sender, pair[0])
    assert engine.look() == native.TOO_LONG
    assert engine.state.error == errno.EMSGSIZE


def resting(missing_bytes: int, arrived_per_s: float, pair: tuple[socket.socket, socket.socket]) -> Engine:
    """One that waits for so much of a message, which arrives at that speed."""
    receiver = connection(1448)
    receiver.expect(FRAME, memoryview(bytearray(missing_bytes - HEADER_BYTES)), 1)
    engine = Engine(receiver, pair[0])
    engine.peer.arrival_rate = arrived_per_s
    return engine


@pytest.mark.parametrize(
    ("missing_bytes", "arrived_per_s", "due_in_s", "rest_s"),
    [
        (10**6, 0.0, 1.0, 0.0),  # nothing is known yet
        (60_000, 1e8, 1.0, 0.0),  # soon it is complete
        (10**6, 1e8, 1.0, 1e-3),
        (10**6, 1e8, 0.4e-3, 1e-3),  # what is due earlier ends it anyway
        (10**6, 1e8, 1.7e-3, 1.7e-3),  # one wake-up for both
        (10**6, 1e8, 2.1e-3, 1e-3),
        (65_536 + 150_000, 1e8, 1.4e-3, 1.4e-3),
        (65_536 + 150_000, 1e8, 1.7e-3, 1e-3),  # by then the message may be complete
        (65_536 + 50_000, 1e8, 1.7e-3, 0.5e-3),
    ],
)
def test_arrivals_wait_for_what_is_due_soon_after_a_rest(
    missing_bytes: int, arrived_per_s: float, due_in_s: float, rest_s: float, pair: tuple[socket.socket, socket.socket]
) -> None:
    assert resting(missing_bytes, arrived_per_s, pair).rest_s(due_in_s) == pytest.approx(rest_s)


def test_who_waits_for_nothing_looks_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    assert Engine(connection(1448), pair[0]).rest_s(math.inf) == 0.0


def test_waiting_ends_with_the_time_or_a_waking(pair: tuple[socket.socket, socket.socket]) -> None:
    engine = resting(10**6, 1e8, pair)
    begun_s = time.monotonic()
    outcome = library().endpoint_drive(ctypes.byref(engine.state), math.inf, begun_s + 0.03)
    assert outcome == native.ONGOING
    assert time.monotonic() >= begun_s + 0.03
    assert library().endpoint_drive(ctypes.byref(engine.state), begun_s, math.inf) == native.LATE
    os.eventfd_write(engine.wake, 1)
    assert library().endpoint_drive(ctypes.byref(engine.state), math.inf, math.inf) == native.MOVED
    assert engine.state.woken
    engine.state.woken = 0
    # Signals are Python's to handle: a call comes back now and then, whatever its deadline.
    assert library().endpoint_drive(ctypes.byref(engine.state), math.inf, math.inf) == native.ONGOING


def test_who_looks_after_connections_that_nobody_drives_is_woken_once_that_is_so(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    engine = resting(10**6, 1e8, pair)
    keeper = Waiter([engine.alarm.descriptor])
    engine.alarm.set(1e-6)
    assert keeper.wait(10) == [0]
    driven_until_s = time.monotonic() + 0.05
    assert library().endpoint_drive(ctypes.byref(engine.state), math.inf, driven_until_s) == native.ONGOING
    assert engine.state.away
    assert keeper.wait(10) == [0]
    assert time.monotonic() > driven_until_s + 1e-3


def test_descriptors_are_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    waiter = Waiter([opened.fileno() for opened in pair])
    started_s = time.monotonic()
    assert waiter.wait(0.01) == []
    assert time.monotonic() - started_s >= 0.01
    pair[0].send(b"x")
    assert waiter.wait(10) == [1]


def test_the_kernel_says_when_what_is_read_late_has_come() -> None:
    """On a socket as channels have it: else a reader that waits for a core is taken for a queue in the network."""
    group = Group(name="stamps", rank=0, size=2, address="127.0.0.1", store=HashStore(), timeout_s=10.0)
    sender, receiver = connection(1448), connection(1448)
    sender.post(FRAME, memoryview(bytes(1000)), None)
    receiver.expect(FRAME, memoryview(bytearray(1000)), 0)
    with _bound(group, 1) as reading, open_socket(("127.0.0.1", 0)) as sending:
        sending.connect(reading.getsockname())
        reading.connect(sending.getsockname())
        _await_stamps()
        assert Engine(sender, sending).look() == native.ONGOING
        time.sleep(0.2)
        assert Engine(receiver, reading).look() == native.ONGOING
        acknowledgement = unpack(next_datagram(sending))
    said = unpack_acknowledged(acknowledgement.number, acknowledgement.body)
    assert list(said.ranges) == [(0, 0)]
    assert said.delay_s >= 0.15


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
        alarm.set(0.0)  # it has gone off, which is forgotten
        assert waiter.wait(0) == []
        alarm.set(0.02)
        alarm.set(0.0)
        assert waiter.wait(0.05) == []
    finally:
        os.close(alarm.descriptor)
