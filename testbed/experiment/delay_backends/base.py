"""Delay, jitter and loss of a link: the interface of what makes them, its stages, and the programs that serve these.

A stage lies at the receiving port of a direction, before routing, apart from the shaper: every packet passes it,
whatever sent it and whoever it is for. Everything here is pure.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from testbed.experiment.seeds import own_seed
from testbed.system.native.layouts import NUM_BUCKETS
from transports.registry import Options, Registry

if TYPE_CHECKING:  # a link names its backend
    from testbed.experiment.link import LinkSpec

MIN_PROGRAM_DELAY_S: Final = 200e-6
"""Twice what a program may be late when it is woken on an idle machine; less would be mostly error."""
_NUM_SEED_BITS: Final = 53
"""What a double holds exactly."""
VETH: Final = "ip link add v0 type veth peer name v1"
"""A link to try something on, in a namespace of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayCounters:
    """What a delay line has done since it was made."""

    num_packets: int
    """A super-frame is one, except on links where packets have fates of their own."""
    num_lost: int
    """By the loss requested."""
    num_dropped: int
    """Because the queue, or the program's buffer, was full: always an error."""
    num_reordered: int = 0
    """Let go at once, before those that wait."""
    num_marked: int = 0
    """By ECN; only where the program has the queue as well."""
    overdue_s: float = 0.0
    """For how long something was overdue by more than 0.3 ms and a tenth of the delay, in all that the program does, as
    far as it was due on this line first: such times of a program's lines add up."""
    late: npt.NDArray[np.uint64]
    """Packets by how late they were let go: a histogram, see :func:`late_s`."""

    def since(self, before: "DelayCounters") -> "DelayCounters":
        """What has happened in between."""
        return DelayCounters(
            num_packets=self.num_packets - before.num_packets,
            num_lost=self.num_lost - before.num_lost,
            num_dropped=self.num_dropped - before.num_dropped,
            num_reordered=self.num_reordered - before.num_reordered,
            num_marked=self.num_marked - before.num_marked,
            overdue_s=self.overdue_s - before.overdue_s,
            late=self.late - before.late,
        )

    def late_s(self, share: float) -> float | None:
        """So late, at most, was that share of the packets (1: all); to 3 %. None without packets."""
        total = int(self.late.sum())
        if total == 0:
            return None
        index = int(np.searchsorted(np.cumsum(self.late), share * total))
        return _upper_edge_s(min(index, NUM_BUCKETS - 1))


def _upper_edge_s(bucket: int) -> float:
    """Inverse of bucket_of() of link_program.h."""
    if bucket < 64:
        return (bucket + 1) * 1e-6
    shift = bucket // 32 - 1
    return float((bucket - shift * 32 + 1) << shift) * 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayCounters:
    """What a program that makes rate and queue as well has done in one direction since it began; implements
    testbed.measure.sampler.LineCounters."""

    num_bytes: int
    """That occupied the line: frames as on a wire, the headers of every segment of a super-frame included."""
    num_packets: int
    """Segments, where the kernel sent super-frames."""
    num_drops: int
    """By the full queue."""
    num_overlimits: int
    """Always 0: packets wait for the line, which is never overdrawn."""
    backlog_bytes: int
    num_lost: int
    num_marked: int
    num_duplicated: int
    num_reordered: int
    num_failed: int
    """That the receiving device refused: always an error."""
    overdue_s: float
    """As in :class:`DelayCounters`."""
    late: npt.NDArray[np.uint64]
    """Deliveries by lateness, as in :class:`DelayCounters`."""
    parameters: Any
    """In force; `rate_bps` among them."""

    @property
    def rate_bps(self) -> float:
        """The rate in force."""
        return float(self.parameters.rate_bps)

    @property
    def delay(self) -> DelayCounters:
        """What the relay has counted as a delay line."""
        return DelayCounters(
            num_packets=self.num_packets,
            num_lost=self.num_lost,
            num_dropped=self.num_failed,
            num_reordered=self.num_reordered,
            num_marked=self.num_marked,
            overdue_s=self.overdue_s,
            late=self.late,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramReport:
    """What a program says of one direction."""

    delay: DelayCounters
    parameters: Any
    """In force, as its stage has them."""
    line: RelayCounters | None = None
    """Where the program makes rate and queue as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayProgram:
    """A C program of testbed.system.native that serves stages until the run ends. It writes what it counts to the file
    that is its first argument, says "ready", and takes further arguments on its standard input."""

    name: str
    """`delay_nfqueue`."""
    serves: Literal["node", "run"]
    """One for each node that something is delayed at, which takes the stages' `daemon_arguments`; or one for the whole
    run, which makes both ends of every link and takes a :func:`port_argument` and the `relay_argument` of each
    direction."""
    consequence: str
    """What its end means."""
    reports: Callable[[bytes, Mapping[int, Mapping[str, int]]], Mapping[int, ProgramReport]]
    """From its file of counters, and the node's netfilter queues by number: by the stages' index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramParameters:
    """What a program is given for one direction: a struct of its C source, all doubles, fields in its order."""

    def argument(self, index: int) -> str:
        """`INDEX:NAME=VALUE,...`, on the command line and on standard input."""
        values = ",".join(f"{field.name}={float(getattr(self, field.name))!r}" for field in fields(self))
        return f"{index}:{values}"


def program_parameters(link: "LinkSpec", *, index: int, seed: int) -> dict[str, float]:
    """What every program is given alike, by the fields' names: delay, jitter, loss and reordering of a link, and the
    seed of a direction's draws."""
    bursts = None if isinstance(link.loss, float | int) else link.loss
    return {
        "delay_ns": round(link.delay_s * 1e9),
        "jitter_ns": round(link.jitter_s * 1e9),
        "uniform": float(link.jitter.distribution == "uniform"),
        "loss_good": bursts.loss_in_good if bursts else link.mean_loss,
        "loss_bad": bursts.loss_in_bad if bursts else 0.0,
        "good_to_bad": bursts.good_to_bad if bursts else 0.0,
        "bad_to_good": bursts.bad_to_good if bursts else 0.0,
        "reorder": link.reorder,
        "seed": own_seed(seed, index) % 2**_NUM_SEED_BITS,
    }


def port_argument(interface: str, mac: str, namespace: str) -> str:
    """What the relay is given for a device to make: the namespace as a path, `/proc/<pid>/ns/net`."""
    return f"{interface},{mac},{namespace}"


class DelayStage:
    """One direction's delay, jitter and loss: plain data that says how to make it and whether it is there."""

    __slots__ = ()

    interface: str
    """The receiving port."""
    index: int
    """Of the direction in the plan: what its program knows it by."""

    @property
    def backend(self) -> str:
        """Whose stage this is: the name of the file."""
        return type(self).__module__.rpartition(".")[2]

    def ip_commands(self) -> Sequence[str]:
        """Lines for `ip -batch`."""
        return ()

    def tc_commands(self) -> Sequence[str]:
        """Lines for `tc -batch`."""
        return ()

    def tc_commands_if_known(self) -> Sequence[str]:
        """Arguments of `tc` for what only newer kernels and versions of iproute2 have; each may fail."""
        return ()

    def following(self, before: Any) -> "DelayStage":  # noqa: ARG002 (where nothing of it stays)
        """This stage in the place of the stage `before` of the same port, with what stays of that. Raises SpecError
        where the one cannot become the other."""
        return self

    def tc_changes(self, before: Any) -> Sequence[str]:  # noqa: ARG002 (where no qdisc takes part)
        """Lines for `tc -batch` that turn the stage `before`, which this one is :meth:`following`, into this one in
        place, dropping nothing; where there are any, its `tc_commands_if_known` come then, and its `differences` are
        those of `qdiscs` and `redirects` alone. Its program gets its arguments anew."""
        return ()

    def firewall_rules(self) -> Sequence[str]:
        """Lines for the mangle table of `iptables-restore`."""
        return ()

    def daemon_arguments(self) -> Sequence[str]:
        """Arguments of the program of the port's node; none where no such program is needed."""
        return ()

    def relay_argument(self) -> str | None:
        """What the program of the whole run is given for this direction; None where there is no such program."""
        return None

    @abstractmethod
    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What the node's read-back (`qdiscs`, `redirects`, `firewall`, `queues`, `addresses`; `relay`: parameters in
        force in the whole run's program, by index) says that was not requested."""

    def parameter_differences(self, parameters: Any) -> list[str]:  # noqa: ARG002 (where no program has any)
        """What its program has in force that was not requested."""
        return []


class DelayBackend(Options):
    """A value on the axis of delay backends: one way to delay packets."""

    preference: ClassVar[int]
    """`auto` takes the least that can do it and works here."""
    needs: ClassVar[str]
    """What a machine must have, and how to get it."""
    cuts_superframes: ClassVar[bool] = False
    """Whether it draws for every packet even where the sender makes super-frames of several."""
    shapes: ClassVar[bool] = False
    """Whether its stage makes rate and queue as well, in place of the shaper."""
    sees_frames: ClassVar[bool] = False
    """Whether it delays what a bridge passes on, too, and not only what a node routes or receives."""
    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""
    program: ClassVar[DelayProgram | None] = None
    """What serves its stages; None: the kernel alone."""
    tools: ClassVar[Sequence[str]] = ()
    """Programs of others that it calls."""

    @abstractmethod
    def unsupported(self, link: "LinkSpec") -> dict[str, str]:
        """Why this backend cannot do what the link requests, on any machine, by the setting it cannot do (`delay`,
        `jitter`, ...); empty when it can do all."""

    @abstractmethod
    def stage(self, link: "LinkSpec", *, interface: str, index: int, seed: int) -> DelayStage:
        """The stage at the receiving `interface`; `index` counts the directions of the plan."""

    @abstractmethod
    def trial(self, program: str, directory: str) -> Sequence[str]:
        """Shell lines that make the smallest delay in a network namespace of their own and fail where it cannot be had;
        `program` is the path of its program, if it has one, and files may be made in the `directory`."""


DELAY_BACKENDS: Final[Registry[DelayBackend]] = Registry("delay backend", "testbed.experiment.delay_backends")


@cache
def delay_backends() -> Mapping[str, DelayBackend]:
    """All delay backends by kind, in the order in which `auto` prefers them."""
    made = [cls() for cls in DELAY_BACKENDS]
    return {each.kind: each for each in sorted(made, key=lambda each: (each.preference, each.kind))}


def makes_ports(kind: str | None) -> bool:
    """Whether a program of that backend makes both ends of every link."""
    program = None if kind is None else delay_backends()[kind].program
    return program is not None and program.serves == "run"
