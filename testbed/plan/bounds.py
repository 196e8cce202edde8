"""The least time of an iteration's exchanges: of the task, whatever the collective, and of the schedule. Pure.

The task's bound knows the workers' own links, and those of hosts that they share, and nothing else, so every
collective, stack and baseline on the same links has the same one. The schedule's says what this collective's bytes need
on the links that they use, those of servers and switches included.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from testbed.experiment.topologies.base import participant_names
from testbed.plan.direction import Direction
from transports.collectives.base import Collective, Operation
from transports.compression.base import Exchange


@dataclass(frozen=True, slots=True)
class _Volume:
    """Multiples of the larger buffer that an operation must move, without help from switches or servers."""

    sent: float
    """By each worker at least."""
    received: float
    total: float
    """By all workers together."""


def _volume(operation: Operation, num_workers: int) -> _Volume:
    """Of `all_reduce`: every worker's values must leave it and every result must reach it, and each element takes n - 1
    messages to be added up and n - 1 to be spread (Patarasuk and Yuan, JPDC 69, 2009; Chan et al., CCPE 19, 2007)."""
    others = num_workers - 1
    share = others / num_workers
    return {
        "all_reduce": _Volume(float(others > 0), float(others > 0), 2.0 * others),
        "reduce_scatter": _Volume(share, 1 / num_workers * (others > 0), float(others)),
        "all_gather": _Volume(1 / num_workers * (others > 0), share, float(others)),
        "all_to_all": _Volume(share, share, float(others)),
        "broadcast": _Volume(0.0, 0.0, float(others)),
        "reduce": _Volume(0.0, 0.0, float(others)),
        "gather": _Volume(0.0, 0.0, share),
        "scatter": _Volume(0.0, 0.0, share),
        "barrier": _Volume(0.0, 0.0, 0.0),
    }[operation]


_BITS: Final = 8


class End(NamedTuple):
    """A worker, or a host that workers share."""

    num_workers: int
    sent_bps: float
    """What all of its links carry away from it, together."""
    received_bps: float

    def aggregated_s(self, size_bytes: int) -> float:
        """The least time in which a switch adds up vectors of that size for its workers: each crosses its links once,
        and so does each sum, both at once, however many workers there are (Sapio et al. 2021, "Scaling Distributed
        Machine Learning with In-Network Aggregation", NSDI)."""
        return _BITS * self.num_workers * size_bytes / min(self.sent_bps, self.received_bps)


def worker_ends(directions: Sequence[Direction], num_workers: int, goodput_fraction: float) -> list[list[End]]:
    """All workers, and all hosts where they share some. Workers whose links have no rate are left out: those of their
    hosts are the first that take time."""
    workers = participant_names(num_workers)
    own = [each for each in directions if not set(workers).isdisjoint(each.hop)]
    beyond = [each for each in directions if set(workers).isdisjoint(each.hop)]
    on_host = Counter(each.hop[1] for each in own if each.hop[0] in workers and each.hop[1].startswith("h"))

    def end(node: str, links: Sequence[Direction], workers_there: int) -> End:
        sent_bps = sum(each.rate_bps for each in links if each.hop[0] == node)
        received_bps = sum(each.rate_bps for each in links if each.hop[1] == node)
        return End(workers_there, sent_bps * goodput_fraction, received_bps * goodput_fraction)

    found = []
    if not all(each.requested.unshaped for each in own):
        found.append([end(worker, own, 1) for worker in workers])
    if on_host:
        found.append([end(host, beyond, workers_there) for host, workers_there in on_host.items()])
    return found


def task_bound_s(exchanges: Sequence[Exchange], groups: Sequence[Sequence[End]]) -> float:
    """The least time in which these exchanges can be done over the links of workers, and over those of their hosts:
    the longest of what any must send or receive by itself, and of what all must send, and receive, together. On links
    alike 2 (n - 1) / n x S / goodput for an all-reduce of S."""
    return max(_least_s(exchanges, ends) for ends in groups)


def _least_s(exchanges: Sequence[Exchange], ends: Sequence[End]) -> float:
    volumes = [(_volume(each.operation, len(ends)), each.num_elements * each.element_bytes) for each in exchanges]
    sent = sum(volume.sent * size_bytes for volume, size_bytes in volumes)
    received = sum(volume.received * size_bytes for volume, size_bytes in volumes)
    total = sum(volume.total * size_bytes for volume, size_bytes in volumes)
    return _BITS * max(
        sent / min(end.sent_bps for end in ends),
        received / min(end.received_bps for end in ends),
        total / sum(end.sent_bps for end in ends),
        total / sum(end.received_bps for end in ends),
    )


def fully_used_s(exchange: Exchange, collective: Collective, groups: Sequence[Sequence[End]]) -> float:
    """The least time of one exchange, whatever its operation, whose links do nothing else: a switch's where the
    collective has one that adds such values, else that of workers alone."""
    aggregation = collective.aggregation
    if aggregation is not None and exchange.link_bytes(aggregation) is not None:
        size_bytes = aggregation.payload_bytes(exchange.num_elements)
        return max(end.aggregated_s(size_bytes) for ends in groups for end in ends)
    return task_bound_s([exchange], groups)


def schedule_bound_s(used: Sequence[Direction], trunks: Sequence[Direction], estimate_s: Mapping[str, float]) -> float:
    """What the schedule's bytes need on the most loaded link: those of participants (`used`) and, where it is certain
    which bytes pass, those between switches (`trunks`). Where the bytes of a participant's link are not known before
    the gradients are, they count as no more than `estimate_s` says by its name."""
    own_s = (
        min(each.balanced_s, estimate_s[each.name]) if each.expected_bytes is None else each.balanced_s for each in used
    )
    certain_s = (each.balanced_s for each in trunks if each.expected_bytes is not None)
    return max([*own_s, *certain_s], default=0.0)
