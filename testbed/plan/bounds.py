"""The least time of an iteration's exchanges: of the task, whatever the collective, and of the schedule. Pure.

The task's bound knows the workers' own links and nothing else, so every collective, stack and baseline on the same
links has the same one. The schedule's says what this collective's bytes need on the links that they use, those of
servers and switches included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.plan.direction import Direction
from transports.collectives.base import Operation
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


def task_bound_s(
    exchanges: Sequence[Exchange], sent_bps: Mapping[str, float], received_bps: Mapping[str, float]
) -> float:
    """The least time in which these exchanges can be done over the workers' own links, whose goodput in each direction
    is given by worker: the longest of what any worker must send or receive by itself, and of what all must send, and
    receive, together. On links alike 2 (n - 1) / n x S / goodput for an all-reduce of S."""
    volumes = [(_volume(each.operation, len(sent_bps)), each.num_elements * each.element_bytes) for each in exchanges]
    sent = sum(volume.sent * size_bytes for volume, size_bytes in volumes)
    received = sum(volume.received * size_bytes for volume, size_bytes in volumes)
    total = sum(volume.total * size_bytes for volume, size_bytes in volumes)
    return _BITS * max(
        sent / min(sent_bps.values()),
        received / min(received_bps.values()),
        total / sum(sent_bps.values()),
        total / sum(received_bps.values()),
    )


def own_goodput_bps(
    directions: Sequence[Direction], nodes: Sequence[str], goodput_fraction: float
) -> tuple[dict[str, float], dict[str, float]]:
    """By node: the goodput of all of its links together, away from it and towards it. A link without a rate is taken as
    fast as it is said to be."""
    sent = dict.fromkeys(nodes, 0.0)
    received = dict.fromkeys(nodes, 0.0)
    for direction in directions:
        sender, receiver = direction.hop
        if sender in sent:
            sent[sender] += direction.rate_bps * goodput_fraction
        if receiver in received:
            received[receiver] += direction.rate_bps * goodput_fraction
    return sent, received


def schedule_bound_s(used: Sequence[Direction], trunks: Sequence[Direction], estimate_s: Mapping[str, float]) -> float:
    """What the schedule's bytes need on the most loaded link: those of participants (`used`) and, where it is certain
    which bytes pass, those between switches (`trunks`). Where the bytes of a participant's link are not known before
    the gradients are, they count as no more than `estimate_s` says by its name."""
    own_s = (
        min(each.balanced_s, estimate_s[each.name]) if each.expected_bytes is None else each.balanced_s for each in used
    )
    certain_s = (each.balanced_s for each in trunks if each.expected_bytes is not None)
    return max([*own_s, *certain_s], default=0.0)
