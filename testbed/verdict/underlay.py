"""Whether the network between the machines of an emulation let its links be what they say. Pure."""

from collections.abc import Iterator, Sequence

from testbed.hosts.machines import UnderlayMeasurement
from testbed.plan.machines import Need, Spread
from testbed.verdict.facts import UnderlayFacts
from testbed.verdict.thresholds import LATENESS_FLOOR_S, LATENESS_SHARE_DEGRADED
from transports.units import format_rate


def underlay_facts(spread: Spread, measured: Sequence[Sequence[UnderlayMeasurement]]) -> list[UnderlayFacts]:
    """By direction between machines; of several measurements the worst of each number. All real time."""
    limit_s = sum(_lateness_limit_s(need) for need in spread.needs)
    found = []
    for need in spread.needs:
        own = [each for once in measured for each in once if (each.source, each.target) == (need.source, need.target)]
        if own:
            found.append(
                UnderlayFacts(
                    source=need.source,
                    target=need.target,
                    num_links=need.num_links,
                    rate_bps=need.rate_bps,
                    needed_bps=need.wire_bps,
                    carried_bps=min(each.carried_bps for each in own),
                    needed_packet_bytes=need.packet_bytes,
                    path_mtu=min(each.path_mtu for each in own),
                    round_trip_s=max(each.round_trip_s for each in own),
                    jitter_s=max(each.jitter_s for each in own),
                    jitter_limit_s=limit_s,
                )
            )
    return found


def _lateness_limit_s(need: Need) -> float:
    """How late packets of these links may be, as it is for what delays them."""
    return max(LATENESS_FLOOR_S, LATENESS_SHARE_DEGRADED * need.least_delay_s)


def underlay_shortcomings(underlay: Sequence[UnderlayFacts]) -> list[str]:
    """Why links between machines cannot have been what they say."""
    return list(_shortcomings(underlay))


def _shortcomings(underlay: Sequence[UnderlayFacts]) -> Iterator[str]:
    for each in underlay:
        way = f"the network from machine {each.source} to {each.target}"
        if each.carried_bps < each.needed_bps:
            yield (
                f"{way} carried {_rate(each.carried_bps)}, and the {each.num_links} links over it need "
                f"{_rate(each.needed_bps)} ({_rate(each.rate_bps)} together, and what VXLAN adds): they may have been "
                "as fast as it, not as fast as they say; use lower rates or a faster network, or put nodes that "
                "exchange more on one machine"
            )
        if not each.path_mtu:
            yield f"{way} let nothing through: see that the machines reach each other's address"
        elif each.path_mtu < each.needed_packet_bytes:
            yield (
                f"{way} let packets of {each.path_mtu} bytes through, and links over it need "
                f"{each.needed_packet_bytes}: raise the MTU of every interface on the way"
            )


def underlay_jitters(underlay: Sequence[UnderlayFacts]) -> list[str]:
    """Why delays of links between machines were not what they say."""
    return [
        f"round trips from machine {each.source} to {each.target} differed by {1e6 * each.jitter_s:.0f} us with "
        f"nothing else under way (limit {1e6 * each.jitter_limit_s:.0f} us, of what links over it may be late): their "
        "delays are partly that network's; use a quieter one or longer delays"
        for each in underlay
        if each.jitter_s > each.jitter_limit_s
    ]


def underlay_note(underlay: Sequence[UnderlayFacts]) -> str:
    """What was measured of it, for a reader."""
    return "; ".join(
        f"from machine {each.source} to {each.target} the network carried {_rate(each.carried_bps)} of "
        f"{_rate(each.needed_bps)} that {each.num_links} links need, packets of {each.path_mtu} bytes of "
        f"{each.needed_packet_bytes}, round trips {1e6 * each.round_trip_s:.0f} us and up to "
        f"{1e6 * each.jitter_s:.0f} us more"
        for each in underlay
    )


def _rate(rate_bps: float) -> str:
    return format_rate(float(f"{rate_bps:.3g}"))
