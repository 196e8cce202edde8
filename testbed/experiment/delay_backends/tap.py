"""The tap backend: both ends of a link are TAP devices, and a small C program (native/relay_tap.c) is the wire.

The program gives rate, byte queue, marks, loss, delay and all else that can be set of a link, per packet, with all
draws from the run's seed. The devices live as long as it does: without it there is no link, never an undelayed one.
A device takes a packet from its sender the moment it is sent, so TCP Small Queues do not hold it back: a host's own
port has a queue that fills and drops, as a switch port's has.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from testbed.experiment.delay_backends.base import (
    DELAY_BACKENDS,
    MIN_PROGRAM_DELAY_S,
    DelayBackend,
    DelayProgram,
    DelayStage,
    ProgramParameters,
    ProgramReport,
    RelayCounters,
    port_argument,
    program_parameters,
)
from testbed.experiment.link import LinkSpec
from testbed.system.native.layouts import RELAY_COUNTERS, RELAY_PARAMETERS
from transports.units import format_time


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayParameters(ProgramParameters):
    """What the relay is given for a direction: struct parameters of relay_tap.c, all doubles."""

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


assert tuple(field.name for field in fields(RelayParameters)) == RELAY_PARAMETERS, "as struct parameters has them"


@dataclass(frozen=True, kw_only=True, slots=True)
class TapStage(DelayStage):
    """One direction of a link: rate, queue and delay."""

    interface: str
    index: int
    parameters: RelayParameters

    def relay_argument(self) -> str:
        """What the relay is given for this direction."""
        return self.parameters.argument(self.index)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What the relay (`relay`: parameters by index) and `ip -d -j address show` say that was not requested."""
        found = []
        links = (item for item in state["addresses"] if item.get("ifname") == self.interface)
        device: dict[str, Any] = next((item.get("linkinfo", {}) for item in links), {})
        data = device.get("info_data", {})
        if (device.get("info_kind"), data.get("type")) != ("tun", "tap"):
            found.append(f"{self.interface}: is {device.get('info_kind', 'absent')}, requested a TAP device")
        elif not data.get("vnet_hdr"):
            found.append(f"{self.interface}: takes no super-frames, requested IFF_VNET_HDR")
        relayed: RelayParameters | None = state["relay"].get(self.index)
        if relayed is None:
            return [*found, f"{self.interface}: nobody relays to it"]
        return found + self.parameter_differences(relayed)

    def parameter_differences(self, parameters: RelayParameters) -> list[str]:
        """What the relay has in force that was not requested."""
        requested = asdict(self.parameters)
        return [
            f"{self.interface}: the relay's {name} is {value:g}, requested {requested[name]:g}"
            for name, value in asdict(parameters).items()
            if value != requested[name]
        ]


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
            overdue_s=int(row["overdue_ns"]) * 1e-9,
            late=row["late"].copy(),
            parameters=RelayParameters(
                **{field.name: float(row["parameters"][field.name]) for field in fields(RelayParameters)}
            ),
        )
        for index, row in enumerate(np.frombuffer(data, dtype=RELAY_COUNTERS))
    }


def _reports(data: bytes, queues: Mapping[int, Mapping[str, int]]) -> dict[int, ProgramReport]:  # noqa: ARG001
    return {
        index: ProgramReport(delay=each.delay, parameters=each.parameters, line=each)
        for index, each in parse_counters(data).items()
    }


@DELAY_BACKENDS.register
class Tap(DelayBackend):
    """TAP devices between which one program, the relay, is every link of the run."""

    preference: ClassVar[int] = 30
    needs: ClassVar[str] = (
        "/dev/net/tun (modprobe tun; in a container: --device /dev/net/tun) and a C compiler (apt-get install "
        "--no-install-recommends gcc libc6-dev linux-libc-dev)"
    )
    cuts_superframes: ClassVar[bool] = True
    shapes: ClassVar[bool] = True
    sees_frames: ClassVar[bool] = True
    program: ClassVar[DelayProgram | None] = DelayProgram(
        name="relay_tap",
        serves="run",
        consequence="its links are gone, so the run ends",
        reports=_reports,
    )

    def unsupported(self, link: LinkSpec) -> dict[str, str]:
        """See :class:`DelayBackend`."""
        if 0 < link.delay_s < MIN_PROGRAM_DELAY_S and not link.best_effort:
            return {
                "delay": f"tap honours 0s, or {format_time(MIN_PROGRAM_DELAY_S)} to 1s; {format_time(link.delay_s)} is "
                "below what a program can be woken for in time (best_effort: true takes what comes)"
            }
        return {}

    def stage(self, link: LinkSpec, *, interface: str, index: int, seed: int) -> TapStage:
        """The stage that ends at the receiving `interface`."""
        return TapStage(
            interface=interface,
            index=index,
            parameters=RelayParameters(
                rate_bps=link.rate_bps,
                queue_bytes=link.queue_bytes,
                mark_bytes=link.ecn_bytes or 0,
                duplicate=link.duplicate,
                **program_parameters(link, index=index, seed=seed),
            ),
        )

    def trial(self, program: str, directory: str) -> Sequence[str]:
        """A link of a millisecond."""
        link = LinkSpec.model_validate({"delay": "1ms", "backend": "tap"})
        ends: list[str] = []
        for index, interface in enumerate(("tap0", "tap1")):
            stage = self.stage(link, interface=interface, index=index, seed=0)
            ends += [port_argument(interface, f"02:00:00:00:00:0{index}", "/proc/self/ns/net"), stage.relay_argument()]
        return [shlex.join([program, "--try", f"{directory}/counters", *ends])]
