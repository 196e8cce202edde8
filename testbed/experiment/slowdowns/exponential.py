"""Shifted exponential: a fixed part, the computing itself, and an exponentially distributed delay on top.

The model of a worker's time in Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran, "Speeding Up Distributed Machine
Learning Using Codes", IEEE Transactions on Information Theory 64(3), 2018.
"""

from random import Random

from testbed.experiment.slowdowns.base import MAX_FACTOR, SLOWDOWNS, Factor, Slowdown


@SLOWDOWNS.register
class Exponential(Slowdown):
    """Drawn anew for each iteration."""

    mean: Factor = 1.5
    """Of the factor; the delay's own mean is one less."""

    def draw(self, random: Random) -> float:
        """1 and an exponential delay."""
        return min(MAX_FACTOR, 1 + (random.expovariate(1 / (self.mean - 1)) if self.mean > 1 else 0.0))
