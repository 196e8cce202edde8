"""Subflows that do not come are an error with its fix; the rest is in the contract of all channels."""

import socket
import time

import pytest
from pydantic import ValidationError

from tests.threads import groups, run_threads
from transports.channels._tcp.mesh import Mesh
from transports.channels.base import CHANNELS
from transports.channels.mptcp import IPPROTO_MPTCP, Mptcp, num_subflows, require_mptcp
from transports.channels.tcp import Tcp
from transports.errors import UnsupportedError
from transports.group import Group


def test_subflows_that_do_not_come_are_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has configured this host's path manager."""
    wait, timeout_s = Mptcp._await_subflows, 20.0

    def wait_briefly(self: Mptcp, mesh: Mesh, deadline_s: float) -> None:
        assert 0 < deadline_s - time.monotonic() < timeout_s
        wait(self, mesh, time.monotonic() + 0.5)

    # Members of a busy machine have all of the timeout to meet in.
    monkeypatch.setattr(Mptcp, "_await_subflows", wait_briefly)

    def life(group: Group) -> str:
        with pytest.raises(UnsupportedError) as raised:
            CHANNELS.parse({"kind": "mptcp", "subflows": 8}).open(group)
        return str(raised.value)

    for reported in run_threads(life, groups(2, timeout_s=timeout_s)):
        assert "has 1 of 8" in reported
        assert "ip mptcp limits set subflows 7" in reported


def test_what_is_no_multipath_connection_has_one_subflow() -> None:
    with socket.socket() as plain:
        assert num_subflows(plain) == 1


def test_a_kernel_without_it_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UnsupportedError, match=r"net\.mptcp\.enabled=1"):
        require_mptcp()


def test_the_number_of_subflows_is_the_kernels() -> None:
    with pytest.raises(ValidationError):
        Mptcp(subflows=9)
    assert getattr(socket, "IPPROTO_MPTCP", 262) == IPPROTO_MPTCP


def test_data_carries_the_option_that_orders_it() -> None:
    wire = Mptcp().wire_bytes(1424 * 1000, 1500)
    assert wire.forward == 1514 * 1000
    assert Mptcp().goodput_fraction(1500) == 1424 / 1514


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_both_sides_of_a_connection_have_the_congestion_control(
    congestion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole connection, which is what subflows that join it later take theirs from."""
    found: list[bytes] = []

    def note(self: Mptcp, mesh: Mesh, deadline_s: float) -> None:
        found.extend(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) for each in mesh.sockets.values())

    monkeypatch.setattr(Mptcp, "_await_subflows", note)
    run_threads(lambda group: Mptcp(congestion=congestion).open(group).close(), groups(2))
    assert [name.rstrip(b"\0").decode() for name in found] == [congestion, congestion]


def test_a_congestion_control_that_is_not_there_is_reported() -> None:
    def life(group: Group) -> str:
        with pytest.raises(UnsupportedError) as raised:
            Mptcp(congestion="quick").open(group)
        return str(raised.value)

    for reported in run_threads(life, groups(2, timeout_s=5.0)):
        assert reported.startswith("channel.congestion: quick cannot be had")
        assert "reno" in reported


def test_its_endpoints_load_what_those_of_tcp_do() -> None:
    """Who builds it ahead, or refuses to run without it, goes by that."""
    assert [*Mptcp.native_libraries] == [*Tcp.native_libraries] != []
