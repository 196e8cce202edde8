"""Compression by a shorter floating-point type in which the gradients are also added."""

from collections.abc import Iterator
from typing import Final

import torch

from transports.compression.base import AllReduce, Array, Codec, Compressor, Exchanging, Layout, Place, limited
from transports.compression.memory import Scratch

_TILE_ELEMENTS: Final = 2**16
"""What is scaled and cast at once: its float32 stay in the second cache."""


class CastCodec(Codec):
    """Each worker's share is cast and summed: no sum of finite shares overflows that the result does not.

    With error feedback gradients are limited so that no sum overflows at all, and what is cut off is sent later.
    """

    def __init__(self, options: Compressor, place: Place, dtype: torch.dtype) -> None:
        super().__init__(options, place)
        self._dtype = dtype
        precision = torch.finfo(dtype)
        self._largest = precision.max / (1 + precision.eps / 2) ** place.num_workers  # each addition may round up
        self._scratch = Scratch()

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        """One round."""
        fed_back = self.options.error_feedback
        given = limited(values, self._largest) if fed_back else values
        share = self._cast(torch.from_numpy(given), weight)
        if fed_back:
            for kept, part in zip(_tiles(torch.from_numpy(values)), _tiles(share), strict=True):
                kept.sub_(part, alpha=1 / weight)
        yield AllReduce(share, "sum")
        torch.from_numpy(out).copy_(share)

    def _cast(self, values: torch.Tensor, weight: float) -> torch.Tensor:
        """Each times the weight, in the type that is sent: in memory that is used again by the next exchange. In one go
        the products of a layer of 10^8 elements would be another 400 MB of fresh pages: ten times as long."""
        share = torch.from_numpy(self._scratch.bytes("share", len(values) * self._dtype.itemsize)).view(self._dtype)
        for part, tile in zip(_tiles(share), _tiles(values), strict=True):
            part.copy_(tile.mul(weight))
        return share


def _tiles(values: torch.Tensor) -> Iterator[torch.Tensor]:
    return (values[start : start + _TILE_ELEMENTS] for start in range(0, len(values), _TILE_ELEMENTS))
