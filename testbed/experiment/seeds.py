"""A seed for each of those that draw, from the run's: runs of neighbouring seeds share none. Pure."""

from typing import Final

_STEP: Final = 65_537
"""From one seed of runs to the next: more than there are links, or flows."""


def own_seed(seed: int, index: int) -> int:
    """Of the one with that index, in a run of that seed."""
    return seed * _STEP + index
