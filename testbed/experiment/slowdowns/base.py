"""Compute stragglers: by what factor a worker's computing takes longer, iteration by iteration. Pure.

The worker computes its real gradient and then waits, without using a core, until its computing has taken that many
times as long; communication is left alone.
"""

from abc import abstractmethod
from random import Random
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from transports.registry import Options, Registry

MAX_FACTOR: Final = 1000.0
Factor = Annotated[float, Field(ge=1, le=MAX_FACTOR)]
"""1 is no slowdown."""


class Slowdown(Options):
    """A value on the slowdown axis."""

    varies: ClassVar[bool] = True
    """Whether one iteration's factor differs from another's."""

    @abstractmethod
    def draw(self, random: Random) -> float:
        """The factor of one iteration, at least 1."""


def iteration_random(*, seed: int, rank: int, phase: str, index: int) -> Random:
    """The numbers that decide one iteration of one worker: the same whatever came before it."""
    return Random(f"slowdown {seed} {rank} {phase} {index}")


SLOWDOWNS: Final[Registry[Slowdown]] = Registry("slowdown", "testbed.experiment.slowdowns")


def parse_slowdown(value: object) -> object:
    """A bare number is a constant factor."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"kind": "constant", "factor": value}
    return SLOWDOWNS.parse(value)


def describe(slowdown: Slowdown) -> str:
    """`lognormal (mean 1.5, deviation 0.5)`."""
    options: dict[str, Any] = slowdown.model_dump()
    return f"{slowdown.kind} ({', '.join(f'{name} {value:g}' for name, value in options.items())})"
