"""Whoever changes a node's settings is heard, put back or not; what does not change the network is not reported."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from switch_agg.namespaces import in_network_of
from testbed.measure.settings import SettingChange, SettingsMonitor, read_sysctls
from testbed.system.netlink import LinkMonitor

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(60)]


@contextmanager
def node() -> Iterator[int]:
    """A process that holds a network namespace with a shaped link of two interfaces."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 10
        while own_namespace(holder.pid) == own_namespace("self"):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for line in (
            "ip link set lo up",
            "ip link add name t0 type veth peer name t1",
            "ip address add 10.9.9.1/24 dev t0",
            "ip link set t0 up",
            "ip link set t1 up",
            "tc qdisc add dev t0 root handle 1: htb default 1",
            "tc class add dev t0 parent 1: classid 1:1 htb rate 100mbit",
        ):
            within(holder.pid, line)
        yield holder.pid
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait(10)


def own_namespace(process: int | str) -> int:
    return int(subprocess.check_output(["stat", "-L", "-c", "%i", f"/proc/{process}/ns/net"]))


def within(pid: int, line: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "--", *line.split()], check=True, capture_output=True)


@contextmanager
def watched(pid: int) -> Iterator[SettingsMonitor]:
    with in_network_of(pid):
        links, settings = LinkMonitor(), SettingsMonitor("n0")
    with links, settings:
        settings.begin(links.link_messages())
        yield settings


def texts(changes: Iterator[SettingChange]) -> set[str]:
    return {change.what for change in changes}


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["tc class change dev t0 classid 1:1 htb rate 200mbit"], "traffic class set on t0"),
        (["tc qdisc add dev t1 root pfifo limit 7"], "queueing discipline set on t1"),
        (["tc qdisc del dev t0 root"], "queueing discipline removed on t0"),
        (
            ["tc qdisc add dev t1 ingress", "tc filter add dev t1 ingress protocol ip u32 match u32 0 0 flowid 1:1"],
            "traffic filter set on t1",
        ),
        (["ip link set t0 mtu 1400"], "interface set on t0"),
        (["ip link set t1 down", "ip link set t1 up"], "interface set on t1"),
        (["ethtool -K t0 gso off"], "interface set on t0"),
        (["ip address add 10.9.8.1/24 dev t1"], "address set on t1"),
        (["ip route add 10.1.0.0/16 via 10.9.9.2"], "route set"),
        (["ip neighbour add 10.9.9.7 lladdr 02:00:00:00:00:01 dev t0"], "neighbour set on t0"),
        (["ip rule add from 10.9.9.1 lookup 77"], "routing rule set"),
        (
            # Where Docker has run it is on in new namespaces.
            ["sysctl -q -w net.ipv4.ip_forward=0", "sysctl -q -w net.ipv4.ip_forward=1"],
            "forwarding of packets (sysctl net.ipv4.ip_forward or net.ipv4.conf) set",
        ),
        (["ip link add name br0 type bridge", "ip link set t1 master br0"], "interface set on t1"),
        (["iptables -A OUTPUT -p udp -j DROP"], "packet filter set"),
    ],
)
def test_each_kind_of_change_is_reported_with_its_place(lines: list[str], reported: str) -> None:
    with node() as pid, watched(pid) as settings:
        for line in lines:
            within(pid, line)
        assert reported in texts(settings.changes())
        assert texts(settings.changes()) == set()


def test_what_the_kernel_keeps_quiet_about_shows_when_it_is_queried() -> None:
    with node() as pid, watched(pid) as settings, in_network_of(pid), LinkMonitor() as monitor:
        index = monitor.interfaces()["t0"]
        assert texts(settings.compared(monitor.link_message(index))) == set()
        within(pid, "ip link set t0 gso_max_segs 3")
        assert texts(settings.changes()) == set()
        assert texts(settings.compared(monitor.link_message(index))) == {"interface set on t0"}


def test_sysctls_of_open_connections_are_read_again_and_again() -> None:
    with node() as pid, watched(pid) as settings, in_network_of(pid):
        key = "net.ipv4.tcp_limit_output_bytes"
        settings.begin([], read_sysctls())
        assert texts(settings.compared_sysctls(read_sysctls())) == set()
        before = read_sysctls()[key]
        within(pid, f"sysctl -q -w {key}=4096")
        assert texts(settings.compared_sysctls(read_sysctls())) == {f"sysctl {key} changed from {before} to 4096"}
        within(pid, f"sysctl -q -w {key}={before}")
        assert texts(settings.compared_sysctls(read_sysctls())) == {f"sysctl {key} changed from 4096 to {before}"}


def test_a_rate_that_was_changed_and_put_back_is_reported_twice_and_by_whom() -> None:
    with node() as pid, watched(pid) as settings:
        for rate in ("200mbit", "100mbit"):
            within(pid, f"tc class change dev t0 classid 1:1 htb rate {rate}")
        changes = list(settings.changes())
        assert [change.what for change in changes] == ["traffic class set on t0"] * 2
        assert all(change.port_id > 0 for change in changes)
        assert changes[0].text.startswith(f"n0: traffic class set on t0 by process {changes[0].port_id}")


def test_what_the_run_itself_does_is_forgotten_and_what_came_before_is_not() -> None:
    with node() as pid, watched(pid) as settings:
        within(pid, "ip link set t0 mtu 1400")
        before = texts(settings.changes())
        within(pid, "tc class change dev t0 classid 1:1 htb rate 50mbit")
        settings.forget()
        assert before == {"interface set on t0"}
        assert texts(settings.changes()) == set()


def test_capturing_and_looking_change_nothing() -> None:
    with node() as pid, watched(pid) as settings:
        for line in (
            "ip link set t0 promisc on",
            "ip link set t0 promisc off",
            "ip -s link show",
            "tc -s class show dev t0",
        ):
            within(pid, line)
        assert texts(settings.changes()) == set()


def test_who_asks_a_monitor_that_is_closed_gets_an_error_and_no_endless_answer() -> None:
    with node() as pid:
        with watched(pid) as settings:
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            settings.forget()
