"""The nfqueue backend: packets wait in the kernel until a small C program (native/delay_nfqueue.c) lets them go.

A rule in the mangle table's PREROUTING chain takes every packet that arrives at the port, before it is routed. The rule
has no bypass: without the program, or once its queue is full, packets are dropped, never delivered too early. Where
chance decides anything of a packet, the kernel cuts super-frames into packets before they are queued.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np

from testbed.experiment.delay_backends.base import (
    DELAY_BACKENDS,
    MIN_PROGRAM_DELAY_S,
    VETH,
    DelayBackend,
    DelayCounters,
    DelayProgram,
    DelayStage,
    ProgramParameters,
    ProgramReport,
    program_parameters,
)
from testbed.experiment.link import MTU, LinkSpec
from testbed.system.native.layouts import DELAY_COUNTERS, DELAY_PARAMETERS
from transports.units import format_time

COPY_META: Final = 1
"""NFQNL_COPY_META: the program gets packets' metadata and never their contents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayParameters(ProgramParameters):
    """What the program is given for a queue: struct parameters of delay_nfqueue.c, all doubles."""

    max_packets: float
    delay_ns: float
    jitter_ns: float
    """Standard deviation."""
    uniform: float
    """1: jitter is uniform; 0: it is normal."""
    loss_good: float
    loss_bad: float
    good_to_bad: float
    bad_to_good: float
    reorder: float
    seed: float


assert tuple(field.name for field in fields(DelayParameters)) == DELAY_PARAMETERS, "as struct parameters has them"


@dataclass(frozen=True, kw_only=True, slots=True)
class NfqueueStage(DelayStage):
    """One direction's delay, jitter, loss and reordering."""

    interface: str
    index: int
    """The number of its queue, too."""
    parameters: DelayParameters

    def firewall_rules(self) -> list[str]:
        """Lines for the mangle table of `iptables-restore`."""
        return [f"-A PREROUTING -i {self.interface} -j NFQUEUE --queue-num {self.index}"]

    def daemon_arguments(self) -> list[str]:
        """`QUEUE:NAME=VALUE,...`."""
        return [self.parameters.argument(self.index)]

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What `iptables-save` and the kernel's table of queues say that was not requested."""
        found = []
        rules = [line for line in state["firewall"] if f" -i {self.interface} " in line]
        if rules != self.firewall_rules():
            found.append(
                f"{self.interface}: firewall rules are {rules or 'absent'}, requested {self.firewall_rules()[0]}"
            )
        queue = state["queues"].get(self.index)
        if queue is None:
            found.append(f"{self.interface}: nobody serves queue {self.index}: every packet is dropped")
        elif queue["copy_mode"] != COPY_META:
            found.append(f"{self.interface}: copy mode of its queue is {queue['copy_mode']}, requested {COPY_META}")
        return found

    def parameter_differences(self, parameters: DelayParameters) -> list[str]:
        """What the program has in force that was not requested."""
        requested = asdict(self.parameters)
        return [
            f"{self.interface}: {name} of its delay line is {value:g}, requested {requested[name]:g}"
            for name, value in asdict(parameters).items()
            if value != requested[name] and not (name == "max_packets" and value > requested[name])
        ]


def parse_counters(data: bytes, queues: Mapping[int, Mapping[str, int]]) -> dict[int, DelayCounters]:
    """The program's counters file, and the kernel's drops of each queue; by queue."""
    return {
        int(row["queue"]): DelayCounters(
            num_packets=int(row["packets"]),
            num_lost=int(row["lost"]),
            num_reordered=int(row["reordered"]),
            num_dropped=queues.get(int(row["queue"]), {}).get("num_dropped", 0),
            overdue_s=int(row["overdue_ns"]) * 1e-9,
            late=row["late"].copy(),
        )
        for row in np.frombuffer(data, dtype=DELAY_COUNTERS)
    }


def parse_parameters(data: bytes) -> dict[int, DelayParameters]:
    """What the program has in force, by queue, from its counters file."""
    return {
        int(row["queue"]): DelayParameters(**{name: float(row["parameters"][name]) for name in DELAY_PARAMETERS})
        for row in np.frombuffer(data, dtype=DELAY_COUNTERS)
    }


def parse_queues(text: str) -> dict[int, dict[str, int]]:
    """/proc/net/netfilter/nfnetlink_queue, by queue.

    Its columns (nfnetlink_queue.c, seq_show): queue, port id, waiting, copy mode, copy range, dropped because the queue
    was full, dropped because the reader's buffer was, id of the last packet, 1.
    """
    found = {}
    for line in text.splitlines():
        queue, _, waiting, copy_mode, _, full, overrun, *_ = (int(field) for field in line.split())
        found[queue] = {"waiting": waiting, "copy_mode": copy_mode, "num_dropped": full + overrun}
    return found


def _reports(data: bytes, queues: Mapping[int, Mapping[str, int]]) -> dict[int, ProgramReport]:
    counters, parameters = parse_counters(data, queues), parse_parameters(data)
    return {queue: ProgramReport(delay=counters[queue], parameters=parameters[queue]) for queue in counters}


@DELAY_BACKENDS.register
class Nfqueue(DelayBackend):
    """Netfilter's queues, where the kernel has no netem."""

    preference: ClassVar[int] = 20
    needs: ClassVar[str] = (
        "iptables, a C compiler (apt-get install --no-install-recommends iptables gcc libc6-dev) and a kernel with "
        "NFQUEUE: modprobe nfnetlink_queue xt_NFQUEUE"
    )
    cuts_superframes: ClassVar[bool] = True
    across_machines: ClassVar[bool] = True
    program: ClassVar[DelayProgram | None] = DelayProgram(
        name="delay_nfqueue",
        serves="node",
        consequence="packets on its links were lost, so the run ends",
        reports=_reports,
    )
    tools: ClassVar[Sequence[str]] = ("iptables-restore", "iptables-save")

    def unsupported(self, link: LinkSpec) -> dict[str, str]:
        """See :class:`DelayBackend`."""
        found = {}
        if link.duplicate > 0:
            found["duplicate"] = "nfqueue decides about packets and makes none"
        if link.ecn_bytes is not None:
            found["ecn"] = "nfqueue never sees the contents of a packet, so it cannot mark it"
        if 0 < link.delay_s < MIN_PROGRAM_DELAY_S and not link.best_effort:
            found["delay"] = (
                f"nfqueue honours 0s, or {format_time(MIN_PROGRAM_DELAY_S)} to 1s; {format_time(link.delay_s)} is "
                "below what a program can be woken for in time (best_effort: true takes what comes)"
            )
        return found

    def stage(self, link: LinkSpec, *, interface: str, index: int, seed: int) -> NfqueueStage:
        """The stage of one direction; its queue holds twice the bandwidth-delay product."""
        return NfqueueStage(
            interface=interface,
            index=index,
            parameters=DelayParameters(
                max_packets=link.max_packets_in_flight(MTU),
                **program_parameters(link, index=index, seed=seed),
            ),
        )

    def trial(self, program: str, directory: str) -> Sequence[str]:
        """A queue, and the program that serves it."""
        smallest = self.stage(LinkSpec(), interface="v1", index=0, seed=1)
        rules = "\\n".join(["*mangle", *smallest.firewall_rules(), "COMMIT", ""])
        serve = shlex.join([program, "--try", f"{directory}/counters", *smallest.daemon_arguments()])
        return [VETH, f"printf '{rules}' | iptables-restore --noflush --wait 10", serve]
