"""The tap backend: both ends of a link are TAP devices, and a small C program (native/relay_tap.c) is the wire.

The program gives rate, byte queue, marks, loss, delay and everything else a link can be asked for, per packet, with all
draws from the run's seed. The devices live as long as it does: without it there is no link, never an undelayed one.
A device takes a packet from its sender the moment it is sent, so TCP Small Queues do not hold it back: a host's own
port has a queue that fills and drops, as a switch port's has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from testbed.experiment.delay_backends.nfqueue import DelayCounters
from testbed.experiment.link import BackendName, GilbertElliott, LinkSpec
from transports.units import format_time

MIN_DELAY_S: Final = 200e-6
"""Twice what the program may be late when it is woken on an idle machine; less would be mostly error."""
_NUM_BUCKETS: Final = 896
_NUM_SEED_BITS: Final = 53
"""What a double holds exactly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayParameters:
    """What the relay is told of a direction: struct parameters of relay_tap.c, all doubles."""

    rate_bps: float
    queue_bytes: float
    mark_bytes: float
    """0: never."""
    delay_ns: float
    jitter_ns: float
    """Standard deviation."""
    uniform: float
    """1: jitter is uniform; 0: it is normal."""
    loss_good: float
    loss_bad: float
    good_to_bad: float
    bad_to_good: float
    duplicate: float
    reorder: float
    seed: float

    def argument(self, index: int) -> str:
        """`INDEX:NAME=VALUE,...`, on the command line and on standard input."""
        values = ",".join(f"{field.name}={float(getattr(self, field.name))!r}" for field in fields(self))
        return f"{index}:{values}"


_COUNTERS: Final = np.dtype(
    [
        *(
            (name, "=u8")
            for name in (
                "packets",
                "bytes",
                "dropped_packets",
                "dropped_bytes",
                "marked",
                "lost",
                "duplicated",
                "reordered",
                "failed",
                "backlog_bytes",
                "max_late_ns",
            )
        ),
        ("late", "=u8", (_NUM_BUCKETS,)),
        ("parameters", [(field.name, "=f8") for field in fields(RelayParameters)]),
    ]
)
"""struct counters of relay_tap.c."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayCounters:
    """What the relay has done in one direction since it began; implements testbed.measure.sampler.LineCounters."""

    num_bytes: int
    """That occupied the line: frames as on a wire, the headers of every segment of a super-frame included."""
    num_packets: int
    """Segments, where the kernel sent super-frames."""
    num_drops: int
    """By the full queue."""
    num_overlimits: int
    """Always 0: the line is never asked for more than it has."""
    backlog_bytes: int
    num_lost: int
    num_marked: int
    num_duplicated: int
    num_reordered: int
    num_failed: int
    """That the receiving device refused: always an error."""
    late: npt.NDArray[np.uint64]
    """Deliveries by lateness, as in :class:`DelayCounters`."""
    parameters: RelayParameters
    """In force."""

    @property
    def rate_bps(self) -> float:
        """In force."""
        return self.parameters.rate_bps

    @property
    def delay(self) -> DelayCounters:
        """What it has done as a delay line."""
        return DelayCounters(
            num_packets=self.num_packets,
            num_lost=self.num_lost,
            num_dropped=self.num_failed,
            num_reordered=self.num_reordered,
            num_marked=self.num_marked,
            late=self.late,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TapStage:
    """One direction of a link, all of it; implements DelayStage."""

    backend: ClassVar[BackendName] = "tap"
    interface: str
    index: int
    parameters: RelayParameters

    def ip_commands(self) -> tuple[str, ...]:
        """None."""
        return ()

    def tc_commands(self) -> tuple[str, ...]:
        """None."""
        return ()

    def tc_commands_if_known(self) -> tuple[str, ...]:
        """None."""
        return ()

    def firewall_rules(self) -> tuple[str, ...]:
        """None."""
        return ()

    def daemon_arguments(self) -> tuple[str, ...]:
        """None: one relay serves the whole run."""
        return ()

    def tc_changes(self, before: "TapStage") -> tuple[str, ...]:  # noqa: ARG002 - no qdisc takes part
        """None: the relay takes its arguments on standard input, too."""
        return ()

    def relay_argument(self) -> str:
        """What the relay is told of this direction."""
        return self.parameters.argument(self.index)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What the relay (`relay`: parameters by index) and `ip -d -j address show` say that was not asked for."""
        found = []
        links = (item for item in state["addresses"] if item.get("ifname") == self.interface)
        device: dict[str, Any] = next((item.get("linkinfo", {}) for item in links), {})
        data = device.get("info_data", {})
        if (device.get("info_kind"), data.get("type")) != ("tun", "tap"):
            found.append(f"{self.interface}: is {device.get('info_kind', 'absent')}, asked for a TAP device")
        elif not data.get("vnet_hdr"):
            found.append(f"{self.interface}: takes no super-frames, asked for IFF_VNET_HDR")
        relayed: RelayParameters | None = state["relay"].get(self.index)
        if relayed is None:
            return [*found, f"{self.interface}: nobody relays to it"]
        for field in fields(RelayParameters):
            value, wanted = getattr(relayed, field.name), getattr(self.parameters, field.name)
            if value != wanted:
                found.append(f"{self.interface}: the relay's {field.name} is {value:g}, asked for {wanted:g}")
        return found


def port_argument(interface: str, mac: str, namespace: str) -> str:
    """What the relay is told of a device to make: the namespace as a path, `/proc/<pid>/ns/net`."""
    return f"{interface},{mac},{namespace}"


def tap_refusals(link: LinkSpec) -> dict[str, str]:
    """What this backend has not got."""
    if 0 < link.delay_s < MIN_DELAY_S and not link.best_effort:
        return {
            "delay": f"tap honours 0s, or {format_time(MIN_DELAY_S)} to 1s; {format_time(link.delay_s)} is below what "
            "a program can be woken for in time (best_effort: true takes what comes)"
        }
    return {}


def tap_stage(link: LinkSpec, *, interface: str, index: int, seed: int) -> TapStage:
    """The stage that ends at the receiving `interface`."""
    bursts = link.loss if isinstance(link.loss, GilbertElliott) else None
    return TapStage(
        interface=interface,
        index=index,
        parameters=RelayParameters(
            rate_bps=link.rate_bps,
            queue_bytes=link.queue_bytes,
            mark_bytes=link.ecn_bytes or 0,
            delay_ns=round(link.delay_s * 1e9),
            jitter_ns=round(link.jitter_s * 1e9),
            uniform=link.jitter.distribution == "uniform",
            loss_good=bursts.loss_in_good if bursts else link.mean_loss,
            loss_bad=bursts.loss_in_bad if bursts else 0,
            good_to_bad=bursts.good_to_bad if bursts else 0,
            bad_to_good=bursts.bad_to_good if bursts else 0,
            duplicate=link.duplicate,
            reorder=link.reorder,
            seed=(seed * 65_537 + index) % 2**_NUM_SEED_BITS,
        ),
    )


def parse_counters(data: bytes) -> dict[int, RelayCounters]:
    """The relay's counters file, by index of the direction."""
    return {
        index: RelayCounters(
            num_bytes=int(row["bytes"]),
            num_packets=int(row["packets"]),
            num_drops=int(row["dropped_packets"]),
            num_overlimits=0,
            backlog_bytes=int(row["backlog_bytes"]),
            num_lost=int(row["lost"]),
            num_marked=int(row["marked"]),
            num_duplicated=int(row["duplicated"]),
            num_reordered=int(row["reordered"]),
            num_failed=int(row["failed"]),
            late=row["late"].copy(),
            parameters=RelayParameters(
                **{field.name: float(row["parameters"][field.name]) for field in fields(RelayParameters)}
            ),
        )
        for index, row in enumerate(np.frombuffer(data, dtype=_COUNTERS))
    }
