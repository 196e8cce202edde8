"""What may be done to a run while it goes on, and the words with which the verdict must name it.

A fault is planted when the measured iterations have begun, at a moment that a seed draws; most are put back long before
the end, so that nothing is left for whoever reads settings back.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.sabotage.victim import Victim

Plant = Callable[[Victim, random.Random], None]
FOREIGN: Final = r"somebody else changed settings .*"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`named_cause`: a regular expression that the reasons, or what the program says, must match."""

    name: str
    plant: Plant
    named_cause: str
    overrides: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    """What `testbed` is started with."""
    outcomes: frozenset[str] = frozenset({"degraded", "invalid"})
    phases: tuple[str, ...] = ("measured",)


def _hold(draw: random.Random) -> None:
    time.sleep(draw.uniform(0.5, 1.0))


def tampered(node: str, *lines: str, back: tuple[str, ...] = ()) -> Plant:
    """Commands in a node's network namespace, and others a while later."""

    def plant(victim: Victim, draw: random.Random) -> None:
        victim.within(node, *lines)
        if back:  # else the run may have ended by it
            _hold(draw)
            victim.within(node, *back)

    return plant


def stopped(name: str, time_s: float) -> Plant:
    """SIGSTOP for so long."""
    return lambda victim, _: victim.stop_for(name, time_s)


def sent(name: str, number: signal.Signals) -> Plant:
    """A signal to a process of the run."""
    return lambda victim, _: victim.send(name, number)


def nothing(_: Victim, __: random.Random) -> None:
    """The fault was there from the beginning."""


def _spinning(core: int, nice: int) -> subprocess.Popen[bytes]:
    """A loop on a core, of that weight among sessions, too: where these share cores (sched(7), autogroup), nice values
    hold within each."""
    loop = ["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(loop, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    with suppress(FileNotFoundError):  # a kernel without autogroups
        Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))
    return process


def loaded(*, num_per_core: int = 4, cores: int | None = None) -> Plant:
    """Other programs want so many cores, or all of them, with a higher priority than the run's."""

    def plant(_: Victim, draw: random.Random) -> None:
        taken = sorted(os.sched_getaffinity(0))[:cores]
        others = [_spinning(core, -20) for core in taken for _ in range(num_per_core)]
        time.sleep(draw.uniform(2.0, 2.5))
        for each in others:
            each.kill()
            each.wait()

    return plant


@contextmanager
def _group(controller: str, pid: int, **files: str) -> Iterator[Path]:
    """A process in a control group (version 1) of its own, and then back where it was."""
    root = Path("/sys/fs/cgroup") / controller
    line = next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if f":{controller}:" in line)
    home = root / line.split(":", 2)[2].lstrip("/")
    group = root / f"sabotage-{pid}"
    group.mkdir()
    try:
        for name, value in files.items():
            (group / name.replace("__", ".")).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        with suppress(OSError):  # it may have been ended
            (home / "cgroup.procs").write_text(str(pid))
        deadline_s = time.monotonic() + 5
        while time.monotonic() < deadline_s:
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def quota(victim: Victim, draw: random.Random) -> None:
    """A fifth of a core for w1, whose real-time threads no group takes that has no time for such."""
    files = {"cpu__cfs_period_us": "100000", "cpu__cfs_quota_us": "20000"}
    if Path("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").exists():
        files["cpu__rt_runtime_us"] = "100000"
    with _group("cpu", victim.pid_of("w1"), **files):
        time.sleep(draw.uniform(1.8, 2.2))


def frozen(victim: Victim, draw: random.Random) -> None:
    """The control group of w1 is frozen, which no signal says."""
    with _group("freezer", victim.pid_of("w1")) as group:
        (group / "freezer.state").write_text("FROZEN")
        time.sleep(draw.uniform(0.8, 1.2))
        (group / "freezer.state").write_text("THAWED")


def starved_of_memory(victim: Victim, _: random.Random) -> None:
    """No memory any more for w1 beyond what it has: the next page that it needs is one too many."""
    with _group("memory", victim.pid_of("w1"), memory__limit_in_bytes="0"):
        victim.process.wait(30)


def connections_cut(victim: Victim, _: random.Random) -> None:
    """Every TCP connection of w1 is destroyed."""
    victim.within("w1", "ss -K -t state established")


RATE: Final = "tc class change dev {} parent 1: classid 1:1 htb rate {} ceil {} burst 1514b cburst 1514b quantum 60000"
RATE_BACK: Final = RATE.format("w1-eth0", "100mbit", "100mbit")
NFQUEUE: Final = ("link.delay=1ms", "link.backend=nfqueue")
TAP: Final = ("link.delay=1ms", "link.backend=tap")
SERVER: Final = ("collective=parameter_server",)
AGGREGATOR: Final = ("collective={kind: in_network, dataplane: reference}", "channel=udp")
CORES: Final = r"waited for a core|overran its pace|gradients were ready|cores did not keep up|other programs took"
BUSY: Final = ("channel=grpc", "link.rate=1gbit", "workload.layers=[8MiB]")
"""A transport that needs the cores: what TCP carries at 2 Gbit/s is 3 % slower beside such a loop, and valid."""
UNPACED: Final = (
    "workload={kind: training, model: cnn, dataset: digits, batch_size: 8, compute_only: 4, warmup: 2, iterations: 25}"
)
FAILED: Final = frozenset({"failed"})
REFUSED: Final = frozenset({"refused"})

FAULTS: Final = (
    Fault(
        name="rate doubled and put back",
        plant=tampered("w1", RATE.format("w1-eth0", "200mbit", "200mbit"), back=(RATE_BACK,)),
        named_cause=FOREIGN + r"w1: traffic class set on w1-eth0 by process",
    ),
    Fault(
        name="rate halved at the switch and put back",
        plant=tampered(
            "s0",
            RATE.format("s0-eth1", "50mbit", "50mbit"),
            back=(RATE.format("s0-eth1", "100mbit", "100mbit"),),
        ),
        named_cause=FOREIGN + r"s0: traffic class set on s0-eth1",
    ),
    Fault(
        name="rate lowered and left",
        plant=tampered("w1", RATE.format("w1-eth0", "90mbit", "90mbit")),
        named_cause=r"w1-eth0: htb rate in bit/s is 90000000, requested 100000000",
    ),
    Fault(
        name="burst raised and put back",
        plant=tampered("w0", RATE.format("w0-eth0", "100mbit", "100mbit").replace("1514b", "500000b")),
        named_cause=FOREIGN + r"w0: traffic class set on w0-eth0",
    ),
    Fault(
        name="queue made short and put back",
        plant=tampered(
            "s0",
            "tc qdisc change dev s0-eth0 parent 1:1 handle 10: bfifo limit 20000",
            back=("tc qdisc change dev s0-eth0 parent 1:1 handle 10: bfifo limit 1000000",),
        ),
        named_cause=FOREIGN + r"s0: queueing discipline set on s0-eth0",
    ),
    Fault(
        name="queue replaced",
        plant=tampered("w1", "tc qdisc replace dev w1-eth0 parent 1:1 handle 11: pfifo limit 5"),
        named_cause=FOREIGN + r"w1: queueing discipline (set|removed) on w1-eth0",
    ),
    Fault(
        name="shaper removed",
        plant=tampered("w1", "tc qdisc del dev w1-eth0 root"),
        named_cause=r"w1: queueing discipline removed on w1-eth0|w1-eth0: its shaper cannot be read",
        outcomes=frozenset({"invalid", "failed", "unsupported"}),
    ),
    Fault(
        name="filter at the entrance and put back",
        plant=tampered(
            "w1",
            "tc qdisc add dev w1-eth0 handle ffff: ingress",
            "tc filter add dev w1-eth0 parent ffff: protocol ip u32 match u32 0 0 flowid 1:1",
            back=("tc qdisc del dev w1-eth0 ingress",),
        ),
        named_cause=FOREIGN + r"w1: (queueing discipline|traffic filter) set on w1-eth0",
    ),
    Fault(
        name="packets dropped by chance",
        plant=tampered("w1", "iptables -w 10 -A INPUT -m statistic --mode random --probability 0.005 -j DROP"),
        named_cause=FOREIGN + r"w1: packet filter set by process",
    ),
    Fault(
        name="packets dropped by chance and put back",
        plant=tampered(
            "s0",
            "iptables -w 10 -A FORWARD -m statistic --mode random --probability 0.02 -j DROP",
            back=("iptables -w 10 -F FORWARD",),
        ),
        named_cause=FOREIGN + r"s0: .*packet filter.* set by process",
    ),
    Fault(
        name="segmentation switched off",
        plant=tampered("w0", "ethtool -K w0-eth0 tso off gso off"),
        named_cause=FOREIGN + r"w0: interface set on w0-eth0",
    ),
    Fault(
        name="segmentation switched off and on",
        plant=tampered("w0", "ethtool -K w0-eth0 tso off", back=("ethtool -K w0-eth0 tso on",)),
        named_cause=FOREIGN + r"w0: interface set on w0-eth0",
    ),
    Fault(
        name="super-frames made small and put back",
        plant=tampered("w1", "ip link set w1-eth0 gso_max_segs 1", back=("ip link set w1-eth0 gso_max_segs 8",)),
        named_cause=FOREIGN + r"w1: interface set on w1-eth0",
    ),
    Fault(
        name="MTU lowered and put back",
        plant=tampered("w1", "ip link set w1-eth0 mtu 1000", back=("ip link set w1-eth0 mtu 1500",)),
        named_cause=FOREIGN + r"w1: interface set on w1-eth0",
    ),
    Fault(
        name="transmit queue made long",
        plant=tampered("w1", "ip link set w1-eth0 txqueuelen 7"),
        named_cause=FOREIGN + r"w1: interface set on w1-eth0",
    ),
    Fault(
        name="link down and up",
        plant=tampered("s0", "ip link set s0-eth1 down", back=("ip link set s0-eth1 up",)),
        named_cause=r"interface set on s0-eth1|s0-eth1|w1",
        outcomes=frozenset({"invalid", "failed"}),
    ),
    Fault(
        name="bridge around the link",
        plant=tampered("w1", "ip link add name br7 type bridge"),
        named_cause=FOREIGN + r"w1: interface set on br7",
    ),
    Fault(
        name="address added and removed",
        plant=tampered(
            "w1", "ip address add 10.77.0.1/24 dev w1-eth0", back=("ip address del 10.77.0.1/24 dev w1-eth0",)
        ),
        named_cause=FOREIGN + r"w1: (address|route) set",
    ),
    Fault(
        name="route with a small window",
        plant=tampered("w1", "ip route add 10.99.0.0/24 dev w1-eth0", back=("ip route del 10.99.0.0/24",)),
        named_cause=FOREIGN + r"w1: route set",
    ),
    Fault(
        name="routing rule",
        plant=tampered("s0", "ip rule add from 10.0.0.1 lookup 77", back=("ip rule del from 10.0.0.1 lookup 77",)),
        named_cause=FOREIGN + r"s0: routing rule set",
    ),
    Fault(
        name="neighbour added",
        plant=tampered("w1", "ip neighbour replace 10.0.0.77 lladdr 02:00:00:00:00:99 dev w1-eth0 nud permanent"),
        named_cause=FOREIGN + r"w1: neighbour set on w1-eth0",
    ),
    Fault(
        name="forwarding off and on",
        plant=tampered("s0", "sysctl -q -w net.ipv4.ip_forward=0", back=("sysctl -q -w net.ipv4.ip_forward=1",)),
        named_cause=FOREIGN + r"s0: (forwarding of packets|sysctl net.ipv4.ip_forward)",
        outcomes=frozenset({"invalid", "failed"}),
    ),
    Fault(
        name="buffers of TCP made small and put back",
        plant=tampered(
            "w1",
            "sysctl -q -w net.ipv4.tcp_limit_output_bytes=4096",
            back=("sysctl -q -w net.ipv4.tcp_limit_output_bytes=1048576",),
        ),
        named_cause=r"w1: sysctl net.ipv4.tcp_limit_output_bytes",
    ),
    Fault(
        name="TCP's segments made few and put back",
        plant=tampered(
            "w0", "sysctl -q -w net.ipv4.tcp_min_tso_segs=1", back=("sysctl -q -w net.ipv4.tcp_min_tso_segs=2",)
        ),
        named_cause=r"w0: sysctl net.ipv4.tcp_min_tso_segs",
    ),
    Fault(name="quota on w1", plant=quota, named_cause=r"a CPU quota of 0\.2 cores was put on w1"),
    Fault(name="w1 stopped", plant=stopped("w1", 1.0), named_cause=r"w1 was stopped for \d\.\d s"),
    Fault(
        name="w0 stopped for a third of a second", plant=stopped("w0", 0.35), named_cause=r"w0 was stopped for \d\.\d s"
    ),
    Fault(name="w1 frozen", plant=frozen, named_cause=r"w1 was frozen for \d\.\d s"),
    Fault(
        name="the whole testbed program stopped",
        plant=stopped("testbed", 2.5),
        named_cause=r"the testbed itself stood still for \d\.\d s",
    ),
    Fault(
        name="server stopped",
        plant=stopped("ps0", 1.0),
        named_cause=r"ps0 was stopped for \d\.\d s",
        overrides=SERVER,
    ),
    Fault(
        name="aggregator stopped",
        plant=stopped("aggregator-a0", 1.0),
        named_cause=r"aggregator-a0 was stopped for \d\.\d s",
        overrides=AGGREGATOR,
    ),
    Fault(
        name="relay stopped",
        plant=stopped("relay", 1.0),
        named_cause=r"relay was stopped for|program that delays packets stood still",
        overrides=TAP,
    ),
    Fault(
        name="delay program stopped",
        plant=stopped("delay-s0", 1.5),
        named_cause=r"delay-s0 was stopped for|program that delays packets stood still",
        overrides=NFQUEUE,
    ),
    Fault(
        name="delay program stopped briefly",
        plant=stopped("delay-w1", 0.3),
        named_cause=r"delay-w1 was stopped for|program that delays packets stood still",
        overrides=NFQUEUE,
    ),
    Fault(
        name="source of background traffic stopped",
        plant=stopped("background", 1.5),
        named_cause=r"background\S* was stopped for|as its source did not get to run",
        overrides=("background=[{from: w0, to: w1, kind: constant, rate: 5mbit}]",),
    ),
    Fault(
        name="other load on the cores",
        plant=loaded(),
        named_cause=CORES,
    ),
    Fault(
        name="a loop on one core",
        plant=loaded(num_per_core=1, cores=1),
        named_cause=r"other programs took \d+ % of the cores \(python",
        overrides=BUSY,
        # Threads that move gradients run first: iterations are as long as without it, within 0.3 %.
        outcomes=frozenset({"valid", "degraded", "invalid"}),
    ),
    Fault(
        name="a loop on one core beside a server over gRPC",
        plant=loaded(num_per_core=1, cores=1),
        named_cause=r"waited for a core.* of (ps0|w0|w1) for|other programs took \d+ % of the cores \(python",
        overrides=(*SERVER, "channel=grpc"),
        # As above: 408.9 ms an iteration without it, 408 to 409 with it.
        outcomes=frozenset({"valid", "degraded", "invalid"}),
    ),
    Fault(
        name="other load while nobody communicates",
        plant=loaded(),
        named_cause=r"waited for a core|overran its pace|gradients were ready|other programs took",
        overrides=("workload.compute_only=40", "workload.iterations=8"),
        phases=("compute-only",),
    ),
    Fault(
        name="other load while computing without a pace is measured",
        plant=loaded(),
        named_cause=r"other programs took \d+ % of the cores \(python.*\) while iterations were measured \(limit",
        overrides=(UNPACED,),
    ),
    Fault(
        name="w1 killed",
        plant=sent("w1", signal.SIGKILL),
        named_cause=r"worker 1 on w1 was killed by signal 9",
        outcomes=FAILED,
    ),
    Fault(
        name="w0 sent SIGTERM",
        plant=sent("w0", signal.SIGTERM),
        named_cause=r"worker 0 on w0 was killed by signal 15|worker 0 on w0 .*(ended|SIGTERM)",
        outcomes=FAILED,
    ),
    Fault(
        name="w1 out of memory", plant=starved_of_memory, named_cause=r"w1 was killed.*out of memory", outcomes=FAILED
    ),
    Fault(
        name="fork server killed", plant=sent("fork-server", signal.SIGKILL), named_cause="fork server", outcomes=FAILED
    ),
    Fault(
        name="holder of w1 killed",
        plant=sent("holder of w1", signal.SIGKILL),
        named_cause="network namespace of w1",
        outcomes=FAILED,
    ),
    Fault(
        name="delay program killed",
        plant=sent("delay-s0", signal.SIGKILL),
        named_cause="delay daemon of s0 was killed by signal 9",
        overrides=NFQUEUE,
        outcomes=FAILED,
    ),
    Fault(
        name="server killed", plant=sent("ps0", signal.SIGKILL), named_cause="ps0", overrides=SERVER, outcomes=FAILED
    ),
    Fault(
        name="aggregator killed",
        plant=sent("aggregator-a0", signal.SIGKILL),
        named_cause="a0",
        overrides=AGGREGATOR,
        outcomes=frozenset({"degraded", "invalid", "failed"}),
    ),
    Fault(name="connections cut", plant=connections_cut, named_cause="w1|rank 1|worker", outcomes=FAILED),
    Fault(name="SIGHUP", plant=sent("testbed", signal.SIGHUP), named_cause="interrupted by SIGHUP", outcomes=FAILED),
    Fault(
        name="few open files",
        plant=nothing,
        named_cause="may open 64 files at once.*ulimit -n",
        wrapper=("prlimit", "--nofile=64:64"),
        outcomes=REFUSED,
    ),
    Fault(
        name="read-only folder of runs",
        plant=nothing,
        named_cause="/run/testbed.*[Rr]ead-only",
        wrapper=(
            *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
            'mkdir -p /run/testbed && mount -t tmpfs -o ro none /run/testbed && exec "$@"',
            "sh",
        ),
        outcomes=REFUSED | {"unsupported"},
    ),
)
