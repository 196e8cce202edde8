"""The least time of an iteration's exchanges: of the task, whatever the collective, and of the schedule. Pure.

The task's bound knows the workers' own links, and those of hosts that they share, and nothing else, so every
collective, stack and baseline on the same links has the same one. The schedule's says what this collective's bytes need
on the links that they use, those of servers and switches included.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from testbed.experiment.topologies.base import participant_names
from testbed.plan.direction import Direction
from transports.collectives.base import Collective, Operation
from transports.compression.base import Exchange


class _Volume(NamedTuple):
    """Multiples of the larger buffer that a worker, or the workers of a host, must move over their links, without help
    from switches or servers."""

    sent: float
    received: float


def _own(operation: Operation, here: int, num_workers: int) -> _Volume:
    """Of `here` of the workers, whatever the others do: values must leave, and results must reach them."""
    others = num_workers - here
    own, rest = here / num_workers if others else 0.0, others / num_workers
    found: Mapping[Operation, _Volume] = {
        "all_reduce": _Volume(float(others > 0), float(others > 0)),
        "reduce_scatter": _Volume(rest, own),
        "all_gather": _Volume(own, rest),
        "all_to_all": _Volume(here * rest, here * rest),
    }
    return found.get(operation, _Volume(0.0, 0.0))  # with a root, or a barrier: not of everyone


def _together(operation: Operation, ends: Sequence["End"], num_workers: int) -> float:
    """Of all together. Each element of `all_reduce` takes n - 1 messages to be added up and n - 1 to be spread
    (Patarasuk and Yuan, JPDC 69, 2009; Chan et al., CCPE 19, 2007)."""
    others = len(ends) - 1
    if operation == "all_reduce":
        return 2.0 * others
    if operation == "all_to_all":
        return sum(_own(operation, end.num_workers, num_workers).sent for end in ends)
    if operation in ("gather", "scatter"):  # to and from the root, which may be where most of them are
        return (num_workers - max(end.num_workers for end in ends)) / num_workers
    return 0.0 if operation == "barrier" else float(others)


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
    num_workers = sum(end.num_workers for end in ends)
    sizes = [(each.operation, each.num_elements * each.element_bytes) for each in exchanges]

    def by_itself_s(end: End) -> float:
        volumes = [(_own(operation, end.num_workers, num_workers), size_bytes) for operation, size_bytes in sizes]
        return max(
            sum(volume.sent * size_bytes for volume, size_bytes in volumes) / end.sent_bps,
            sum(volume.received * size_bytes for volume, size_bytes in volumes) / end.received_bps,
        )

    total_bytes = sum(_together(operation, ends, num_workers) * size_bytes for operation, size_bytes in sizes)
    return _BITS * max(
        *map(by_itself_s, ends),
        total_bytes / sum(end.sent_bps for end in ends),
        total_bytes / sum(end.received_bps for end in ends),
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
