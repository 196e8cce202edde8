"""One bit for each element: the sign of its momentum. The workers vote.

Bernstein, Wang, Azizzadenesheli, Anandkumar 2018, "signSGD: Compressed Optimisation for Non-Convex Problems" (ICML),
algorithm 2, and Bernstein, Zhao, Azizzadenesheli, Anandkumar 2019, "signSGD with Majority Vote is Communication
Efficient and Fault Tolerant" (ICLR), where the vote is of momentums: m = momentum x m + (1 - momentum) x gradient. On
the wire as `signsgd`.

The momentum is applied here, before the sign, so the optimizer must have none.
"""

from typing import ClassVar

from pydantic import Field

from transports.compression.base import COMPRESSORS, Array, Layout, Place
from transports.compression.memory import Memory, forget_infinite
from transports.compression.signsgd import SignSgd
from transports.compression.signsgd import _Codec as VotingCodec


@COMPRESSORS.register
class Signum(SignSgd):
    """The result is +1, -1, or 0 in a tie: the learning rate is the length of the step."""

    stateful: ClassVar[bool] = True
    own_momentum: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "what is left out of a momentum stays in it"

    momentum: float = Field(0.9, ge=0, lt=1)
    """In place of the optimizer's."""

    def contraction(self, num_elements: int) -> None:
        """It is of what came before, too."""

    def codec(self, place: Place) -> "_Codec":
        """One worker's."""
        return _Codec(self, place)


class _Codec(VotingCodec):
    options: Signum  # type: ignore[misc]

    def __init__(self, options: Signum, place: Place) -> None:
        super().__init__(options, place)
        self._momentum = Memory()

    def coded(self, values: Array, layout: Layout) -> Array:
        """The momentum."""
        momentum = self._momentum.flat(layout)
        forget_infinite(momentum)  # of the last time, when it was sent
        momentum *= self.options.momentum
        momentum += values * (1 - self.options.momentum)
        return momentum
