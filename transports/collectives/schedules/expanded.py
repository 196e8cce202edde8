"""The schedules of all participants of an exchange. The latest ones are remembered: a plan asks for those of each of
its exchanges several times, for bytes, time and critical path, and the points of a sweep ask for the same ones."""

import threading
from collections import OrderedDict
from functools import cached_property
from typing import Final

from transports.collectives.base import Collective, Operation, Step, World
from transports.collectives.schedules.defaults import schedule
from transports.collectives.schedules.dependencies import Dependencies, dependencies

MOST_STEPS: Final = 100_000
"""Of all that is remembered: some 50 MB with their orders."""


class Schedules(tuple[tuple[Step, ...], ...]):
    """Every participant's steps, servers after the workers."""

    @cached_property
    def orders(self) -> tuple[Dependencies, ...]:
        """What each participant's steps wait for."""
        return tuple(map(dependencies, self))

    @cached_property
    def num_steps(self) -> int:
        """Of all participants."""
        return sum(map(len, self))


_Key = tuple[Collective, Operation, World, int, int, int]


class _Recent:
    """The latest ones; whoever was wanted the longest ago goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, Schedules] = OrderedDict()
        self._num_steps = 0

    def get(self, key: _Key) -> Schedules | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: _Key, found: Schedules) -> None:
        with self._lock:
            if key in self._found or found.num_steps > MOST_STEPS:
                return
            self._found[key] = found
            self._num_steps += found.num_steps
            while self._num_steps > MOST_STEPS:
                self._num_steps -= self._found.popitem(last=False)[1].num_steps


_recent = _Recent()


def schedules(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    *,
    root: int = 0,
) -> Schedules:
    """Every participant's steps."""
    key = collective, operation, world, num_elements, element_bytes, root
    if (found := _recent.get(key)) is None:
        found = Schedules(
            tuple(
                schedule(
                    collective, operation, world, participant, num_elements, element_bytes=element_bytes, root=root
                )
            )
            for participant in range(world.size)
        )
        _recent.put(key, found)
    return found
