"""When an operation is timed: what comes before it, as both those who time and those who predict know it. Pure."""

import math
from typing import Final

LASTING_S: Final = 2.0
"""An operation of that length does not show how it began: there is none before it that is not timed."""
_HOST_S: Final = 1e-3
"""What a message to another rank may take beside the links."""
_WAKING_S: Final = 0.2e-3
"""By how much ranks wake up apart that sleep until the same time."""


def appointment_s(num_ranks: int, latency_s: float | None) -> float | None:
    """How long after rank 0 has left a barrier all begin, given the latency from rank to rank; None: whenever they
    leave it, since they do so nearly at once, or nobody knows how far apart they are. Whoever leaves last does so
    ceil(log2 ranks) messages after the first at most, and hears of the time that rank 0 has chosen after as many again
    at most."""
    if latency_s is None or latency_s <= _WAKING_S:
        return None
    num_rounds = math.ceil(math.log2(num_ranks)) if num_ranks > 1 else 0
    return (num_rounds + 1) * (latency_s + _HOST_S)
