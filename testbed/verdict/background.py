"""What background flows did over the measured window, from the counters at its borders. Pure."""

from collections.abc import Sequence

from testbed.measure.snapshot import Snapshot
from testbed.plan.background import FlowBytes, flow_bytes, on_hop
from testbed.plan.direction import Direction
from testbed.plan.plan import Plan
from testbed.record.summary import BackgroundSummary


def flows_between(plan: Plan, start: Snapshot, end: Snapshot) -> list[FlowBytes]:
    """Every flow of the plan."""
    found = []
    for flow, before, after in zip(plan.background, start.background, end.background, strict=True):
        there = (flow.target.address, flow.port)
        payload_bytes = segments = 0
        for sign, snapshot in ((1, end), (-1, start)):
            for connection in snapshot.connections.get(flow.source.node, {}).values():
                if connection.remote == there:
                    payload_bytes += sign * connection.counted.bytes_sent
                    segments += sign * connection.counted.data_segments_out
        found.append(flow_bytes(flow, before, after, tcp_payload_bytes=payload_bytes, tcp_segments=segments))
    return found


def on_direction(
    plan: Plan, flows: Sequence[FlowBytes], direction: Direction, start: Snapshot, end: Snapshot
) -> tuple[int | None, int]:
    """Background bytes that surely crossed it, None where equal paths leave that open; and how many more or fewer its
    counter may have seen: packets dropped on their path, and what can come while counters are read, which is no more
    than the slowest link of each flow's path lets through."""
    shares = [each.flow.path.shares.get(direction.hop, 0) for each in flows]
    if not any(shares):
        return 0, 0
    if any(0 < share < 1 for share in shares):
        return None, 0
    crossed_bytes, lost_bytes = on_hop(flows, direction.hop)
    rates_bps = {each.hop: each.rate_bps for each in plan.directions}
    most_bps = sum(
        min(rates_bps[hop] for hop in each.flow.path.shares) for each in flows if direction.hop in each.flow.path.shares
    )
    reading_s = plan.clock.virtual_s(start.took_s + end.took_s)
    return crossed_bytes, lost_bytes + round(reading_s * min(direction.rate_bps, most_bps) / 8)


def crossed(plan: Plan) -> set[tuple[str, str]]:
    """Links, by name and sending node, that background flows share: what they drop is part of the experiment."""
    return {
        (direction.link, direction.sender.node)
        for direction in plan.directions
        if any(flow.path.shares.get(direction.hop) for flow in plan.background)
    }


def background_ends(plan: Plan) -> set[tuple[str, int]]:
    """Addresses and ports of the sinks: connections to and from them are not the experiment's."""
    return {(flow.target.address, flow.port) for flow in plan.background}


def summaries(flows: Sequence[FlowBytes], window_s: float) -> list[BackgroundSummary]:
    """The summary of each background flow, for the record."""
    return [
        BackgroundSummary(
            from_=each.flow.source.node,
            to=each.flow.target.node,
            kind=each.flow.requested.kind,
            requested=each.flow.requested.text() + each.flow.requested.when,
            offered_bps=each.flow.requested.offered_bps(),
            sent_bps=8 * each.sent_bytes / window_s,
            received_bps=8 * each.received_bytes / window_s,
            blocked_share=_share(each.blocked, each.due),
            late_share=_share(each.late, each.due),
        )
        for each in flows
    ]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
