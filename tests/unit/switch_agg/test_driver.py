import socket
import time
from collections.abc import Iterable, Sequence
from sys import byteorder

import pytest

from switch_agg.core import Datagram
from switch_agg.driver import Driver, Service, open_socket


class Echo:
    """Sends everything back, and counts its deadlines."""

    def __init__(self) -> None:
        self.outbox: list[Datagram] = []
        self.marks: list[bool] = []
        self.due_s: float | None = None
        self.expired = 0

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        for datagram in datagrams:
            if datagram.data == b"bad":
                raise ValueError("bad")
            self.marks.append(datagram.marked)
            self.outbox.append(Datagram(datagram.peer, datagram.data))

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        outbox, self.outbox = self.outbox, []
        return outbox

    def deadline_s(self) -> float | None:
        return self.due_s

    def expire(self, now_s: float) -> None:
        self.expired += 1
        self.due_s = None


def test_datagrams_go_to_the_core_and_back_with_their_marks() -> None:
    core = Echo()
    with open_socket(("127.0.0.1", 0)) as opened, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        driver = Driver(core, opened)
        for tos, data in ((0, b"one"), (3, b"two")):
            peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            peer.sendto(data, opened.getsockname())
        assert driver.run(lambda: len(core.marks) == 2, deadline_s=time.monotonic() + 5)
        assert core.marks == [False, True]
        assert [peer.recv(10), peer.recv(10)] == [b"one", b"two"]


def test_a_message_of_several_datagrams_is_these_datagrams() -> None:
    """Loopback passes it on whole, as a veth pair does; the last one may be shorter."""
    core = Echo()
    with open_socket(("127.0.0.1", 0)) as opened, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3)
        peer.connect(opened.getsockname())
        peer.sendmsg([b"onetwothx"], [(socket.SOL_UDP, 103, (4).to_bytes(2, byteorder))])
        peer.send(b"")
        assert Driver(core, opened).run(lambda: len(core.marks) == 4, deadline_s=time.monotonic() + 5)
        peer.settimeout(5)
        assert [peer.recv(10) for _ in range(4)] == [b"onet", b"woth", b"x", b""]
        assert core.marks == [True] * 4


def test_deadlines_are_kept_and_a_run_ends_at_its_own() -> None:
    core = Echo()
    with open_socket(("127.0.0.1", 0)) as opened:
        core.due_s = time.monotonic() + 0.02
        assert Driver(core, opened).run(lambda: core.expired == 1, deadline_s=time.monotonic() + 5)
        assert not Driver(core, opened).run(lambda: False, deadline_s=time.monotonic() + 0.01)


def test_nobody_at_the_other_end_is_no_error() -> None:
    core = Echo()
    with open_socket(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with open_socket(("127.0.0.1", 0), remote=address) as opened:
        driver = Driver(core, opened)
        for _ in range(3):
            core.outbox = [Datagram(address, b"x")]
            driver.run(lambda: False, deadline_s=time.monotonic() + 0.02)


def test_a_destination_that_fails_is_counted_and_logged_once_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Port 0 is nobody's (EINVAL), broadcasting needs a permission (EACCES)."""
    core, opened = Echo(), open_socket(("127.0.0.1", 0))
    service = Service(core, opened, name="echo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        for _ in range(3):
            with service.lock:
                core.outbox += [Datagram(("127.0.0.1", 0), b"x"), Datagram(("255.255.255.255", 9), b"x")]
            peer.sendto(b"hello", opened.getsockname())
            assert peer.recv(10) == b"hello"
    service.check()
    with service.lock:
        assert service.unsent() == {"127.0.0.1": 3, "255.255.255.255": 3}
    service.close()
    assert [record.getMessage() for record in caplog.records if record.name == "switch_agg.driver"] == [
        "nothing can be sent to 127.0.0.1:0: Invalid argument; others are served",
        "nothing can be sent to 255.255.255.255:9: Permission denied; others are served",
    ]


def test_without_somebody_to_hear_of_it_a_failing_destination_is_an_error() -> None:
    core = Echo()
    with open_socket(("127.0.0.1", 0)) as opened:
        core.outbox = [Datagram(("127.0.0.1", 0), b"x")]
        with pytest.raises(OSError, match="Invalid argument"):
            Driver(core, opened).run(lambda: False, deadline_s=time.monotonic() + 5)


def test_a_service_tells_what_ended_it() -> None:
    opened = open_socket(("127.0.0.1", 0))
    service = Service(Echo(), opened, name="echo")
    service.check()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.sendto(b"bad", opened.getsockname())
        service._thread.join(5)
    with pytest.raises(ValueError, match="bad"):
        service.check()
    service.close()
