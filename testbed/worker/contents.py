"""What replayed exchanges carry: random numbers that cost a worker no time, and memory for what arrives."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import torch

_NUM_DRAWN: Final = 2**20 + 7
"""Of which contents are stretches. No power of two, so that neighbouring buffers of the usual sizes begin in different
places."""
_DEVIATION: Final = 1e-3


class Contents:
    """Numbers drawn once from a seed, given out in turn without being copied; and buffers, used again and again."""

    def __init__(self, seed: int, largest: Mapping[str, int]) -> None:
        """`largest`: elements of the largest stretch, of each element type that is sent."""
        generator = torch.Generator().manual_seed(seed)
        self._drawn = {name: _drawn(getattr(torch, name), count, generator) for name, count in largest.items()}
        self._next = 0
        self._free: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)

    def take(self, element_type: str, count: int) -> torch.Tensor:
        """The next ones, (count,); not to be written to."""
        start = self._next
        self._next = (start + count) % _NUM_DRAWN
        return self._drawn[element_type][start : start + count]

    def buffer(self, element_type: str, count: int) -> torch.Tensor:
        """Memory for so many, (count,), with whatever is in it; :meth:`give_back` what is not needed any more."""
        dtype: torch.dtype = getattr(torch, element_type)
        free = self._free[dtype]
        fitting = [index for index, each in enumerate(free) if len(each) >= count]
        if not fitting:
            return torch.empty(count, dtype=dtype)
        return free.pop(min(fitting, key=lambda index: len(free[index])))[:count]

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody writes to it, or reads it, any more."""
        whole = torch.empty(0, dtype=buffer.dtype).set_(buffer.untyped_storage())
        self._free[buffer.dtype].append(whole)


def _drawn(dtype: torch.dtype, largest: int, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        drawn = (_DEVIATION * torch.randn(_NUM_DRAWN, generator=generator)).to(dtype)
    else:
        drawn = torch.randint(0, 2, (_NUM_DRAWN,), generator=generator).to(dtype)
    repeated = torch.empty(_NUM_DRAWN + largest, dtype=dtype)
    for part in torch.split(repeated, _NUM_DRAWN):
        part.copy_(drawn[: len(part)])
    return repeated
