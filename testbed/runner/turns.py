"""Whose turn it is in a sweep. Pure.

Repetitions go round by round: each round runs every point once, in an order that a seed draws, and the next round runs
them in the opposite order. So a machine that grows steadily slower, or a neighbour who comes and goes, meets all points
alike: what drifts evenly falls out of the mean of two rounds, and runs of one round are the pairs in which settings are
compared (testbed.store.differences). A run that is to be repeated is repeated at the end of its round, so that
it stays in its pair, and what disturbed it may have passed.

Whose turn it is follows from the runs that there are and from nothing else: a sweep that was killed goes on with it.
"""

import random
from collections.abc import Container, Sequence

from testbed.report.comparison.points import ComparedPoint


def order_of_round(num_points: int, number: int, seed: int) -> list[int]:
    """The positions of the points in the order in which one round runs them; rounds count from 0."""
    # By numbers that are drawn: how Python shuffles may change from version to version, `random()` does not.
    draw = random.Random(f"{seed} {number // 2}")
    keys = [draw.random() for _ in range(num_points)]
    order = sorted(range(num_points), key=keys.__getitem__)
    return order[::-1] if number % 2 else order


def next_turn(points: Sequence[ComparedPoint], seed: int, *, busy: Container[int] = ()) -> int | None:
    """The position of the point that runs next; None when all have what was requested, or their turn has come already:
    positions in `busy` are left out, so that with several machines the others may be a round ahead."""
    waiting = [position for position, point in enumerate(points) if point.num_missing and position not in busy]
    if not waiting:
        return None
    number = min(len(points[position].counted) for position in waiting)
    rank = {position: place for place, position in enumerate(order_of_round(len(points), number, seed))}
    return min(
        (position for position in waiting if len(points[position].counted) == number),
        key=lambda position: (num_tries(points[position]), rank[position]),
    )


def num_tries(point: ComparedPoint) -> int:
    """How many runs of its present round are repeated, as they were invalid, or degraded where that is not accepted."""
    found = 0
    for repeated in reversed(point.is_repeated):
        if not repeated:
            break
        found += 1
    return found
