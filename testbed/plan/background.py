"""Background flows as the plan has them, and what they put on the links. Pure."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from testbed.errors import SpecError
from testbed.experiment.background.base import Background
from testbed.experiment.seeds import own_seed
from testbed.plan.addressing import Port
from testbed.plan.paths import Hop, Path
from testbed.system.native.layouts import FLOW_COUNTERS
from transports.channels.tcp_info import SEGMENT_HEADERS_BYTES

FIRST_PORT: Final = 5201
"""Of the first flow's sink; below the ports that the kernel gives to connections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One flow with its ends and its path."""

    index: int
    requested: Background
    source: Port
    target: Port
    path: Path

    @property
    def port(self) -> int:
        """The port of the flow's sink."""
        return FIRST_PORT + self.index

    @property
    def title(self) -> str:
        """`background w0 → w3 (constant)`."""
        return f"background {self.source.node} → {self.target.node} ({self.requested.kind})"

    def sink_arguments(self) -> tuple[str, ...]:
        """The arguments that follow the path of its counters."""
        return ("sink", self.requested.protocol, self.target.address, str(self.port))

    def source_arguments(self, *, seed: int) -> tuple[str, ...]:
        """The arguments that follow the path of its counters."""
        requested = self.requested
        moments = (f"{requested.start_s * 1e9:.0f}", f"{(requested.stop_s or 0) * 1e9:.0f}")
        ends = (self.source.address, self.target.address, str(self.port))
        return (requested.protocol, *ends, *moments, *requested.source_arguments(seed=own_seed(seed, self.index)))

    def to_json(self) -> dict[str, Any]:
        """Plain data for `testbed plan --json`."""
        return {
            "from": self.source.node,
            "to": self.target.node,
            "kind": self.requested.kind,
            "path": self.path.text,
            "offered_bps": self.requested.offered_bps(),
            "text": self.requested.text() + self.requested.when,
        }


def plan_flows(
    background: Sequence[Background], ports: Mapping[str, Port], paths: Mapping[Hop, Path]
) -> tuple[Flow, ...]:
    """The flows between these hosts. Raises SpecError for an end that is none of them."""
    flows = []
    for index, requested in enumerate(background):
        for key, node in (("from", requested.from_), ("to", requested.to)):
            if node not in ports:
                raise SpecError(f"background.{index}.{key}: {node!r} is no host; there are {', '.join(ports)}")
        flows.append(
            Flow(
                index=index,
                requested=requested,
                source=ports[requested.from_],
                target=ports[requested.to],
                path=paths[requested.from_, requested.to],
            )
        )
    return tuple(flows)


def uncertain_hops(flows: Sequence[Flow], paths: Mapping[Hop, Path]) -> set[Hop]:
    """Hops that a flow, or what answers it, may or may not cross: nobody knows their bytes."""
    pairs = {
        pair for flow in flows for pair in ((flow.source.node, flow.target.node), (flow.target.node, flow.source.node))
    }
    return {hop for pair in pairs for hop, share in paths[pair].shares.items() if share != 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficCounters:
    """struct counters of traffic.c."""

    origin_ns: int
    due: int
    sent: int
    blocked: int
    late: int
    sent_bytes: int
    received: int
    received_bytes: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The whole of a counters file."""
        return cls(**dict(zip(FLOW_COUNTERS, struct.unpack(f"={len(FLOW_COUNTERS)}Q", data), strict=True)))


assert tuple(field.name for field in fields(TrafficCounters)) == FLOW_COUNTERS, "as struct counters has them"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowCounters:
    """The counters at both ends of a flow at one moment."""

    source: TrafficCounters
    sink: TrafficCounters


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowBytes:
    """What a flow put on the wire between two moments, headers included."""

    flow: Flow
    sent_bytes: int
    """By the source: each may have crossed every link of the path, or have been dropped before."""
    received_bytes: int
    """By the sink: each has crossed every link of the path."""
    due: int = 0
    """Packets that the schedule requested; 0 for TCP."""
    blocked: int = 0
    """Of them, those that did not fit the source's own link."""
    late: int = 0
    """Of them, those that were left out because the source did not get to run in time."""

    @property
    def lost_bytes(self) -> int:
        """What may or may not have crossed a link."""
        return max(0, self.sent_bytes - self.received_bytes)


def flow_bytes(
    flow: Flow, start: FlowCounters, end: FlowCounters, *, tcp_payload_bytes: int, tcp_segments: int
) -> FlowBytes:
    """Between two moments. The kernel's counters of the flow's connections say what TCP sent: payload with
    retransmissions, and segments that carried it."""
    received = end.sink.received_bytes - start.sink.received_bytes
    if flow.requested.protocol == "udp":
        return FlowBytes(
            flow=flow,
            sent_bytes=end.source.sent_bytes - start.source.sent_bytes,
            received_bytes=received,
            due=end.source.due - start.source.due,
            blocked=end.source.blocked - start.source.blocked,
            late=end.source.late - start.source.late,
        )
    sent = tcp_payload_bytes + SEGMENT_HEADERS_BYTES * tcp_segments
    wire_per_payload = sent / tcp_payload_bytes if tcp_payload_bytes else 1.0
    return FlowBytes(flow=flow, sent_bytes=sent, received_bytes=min(sent, round(received * wire_per_payload)))


def on_hop(flows: Sequence[FlowBytes], hop: Hop) -> tuple[int, int]:
    """Bytes that surely crossed the hop, and bytes that may have, of those flows that take it with certainty."""
    crossing = [each for each in flows if each.flow.path.shares.get(hop) == 1]
    return sum(each.received_bytes for each in crossing), sum(each.lost_bytes for each in crossing)
