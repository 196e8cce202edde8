"""What workers' own endpoints counted over the measured iterations, of channels whose bytes are no TCP of the kernel's.

The kernel's counters (testbed.measure.connections) say of its TCP what was acknowledged and sent again; of a channel
that does this itself (`Channel.counts_itself`) only its ends know. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.plan.paths import Hop, Path
from testbed.plan.plan import Plan
from transports.channels.base import PeerStatistics

WorkersStatistics = Mapping[int, Mapping[int, PeerStatistics]]
"""By rank, then by its peer, of the measured iterations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """What crossed a direction beside the payload sent once."""

    acknowledgement_bytes: int = 0
    """On the wire."""
    retransmitted_bytes: int = 0
    """Payload."""


def overheads(
    statistics: WorkersStatistics, paths: Mapping[Hop, Path], participants: Sequence[str], hop: Hop
) -> Overheads:
    """Of one direction; `participants` are nodes by rank. Where a path has equal alternatives nothing is attributed."""
    acknowledged = retransmitted = 0
    for rank, peers in statistics.items():
        for peer, counts in peers.items():
            if paths[participants[rank], participants[peer]].shares.get(hop) == 1:
                acknowledged += counts.acknowledgement_bytes_sent
                retransmitted += counts.retransmitted_bytes
    return Overheads(acknowledgement_bytes=acknowledged, retransmitted_bytes=retransmitted)


def unreported(plan: Plan) -> set[Hop]:
    """The directions on which parameter servers acknowledge and send again over a channel that counts this itself:
    servers report nothing, so nobody knows how much of it there was."""
    if not plan.experiment.channel.counts_itself:
        return set()
    workers, servers = plan.participants[: plan.experiment.workers], plan.participants[plan.experiment.workers :]
    return {hop for server in servers for worker in workers for hop in plan.paths[server, worker].shares}
