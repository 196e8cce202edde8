"""Now and then an iteration takes longer, the others do not: garbage collection, a busy neighbour, a slow disk."""

from random import Random

from pydantic import Field

from testbed.experiment.slowdowns.base import SLOWDOWNS, Factor, Slowdown


@SLOWDOWNS.register
class Bernoulli(Slowdown):
    """Each iteration is slow or not, whatever the others are."""

    probability: float = Field(0.1, ge=0, le=1)
    """Of a slow iteration."""
    factor: Factor = 5.0
    """Of a slow one."""

    def draw(self, random: Random) -> float:
        """The factor, or 1."""
        return self.factor if random.random() < self.probability else 1.0
