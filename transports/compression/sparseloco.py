"""The largest elements of each tile of a parameter, in two bits each, and where they are.

Sarfi, Thérien, Lidin, Belilovsky 2025, "Communication Efficient LLM Pre-training with SparseLoCo" (arXiv 2508.15706),
as in the authors' github.com/tplr-ai/CCLoco: e = decay x e + gradient; of each tile of e the largest `kept` go out,
quantised by statistics of the parameter's: a bin is as wide as 6 standard deviations over the number of bins, and is
decoded as the mean of what is in it. What was sent leaves e. The authors send the pseudo-gradients of many local steps
so, and divide what comes of an element by the number of workers that sent it; here gradients are sent, and the result
is the mean over all workers.

On the wire, for each parameter: a float32 for each bin, the indices in a tile (12 bits among 64 x 64), and the bins.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from transports.compression._levels import Width, pack, packed_bytes, unpack
from transports.compression._tiles import (
    Tiles,
    index_bytes,
    largest,
    pack_indices,
    parameters,
    shapes_of,
    unpack_indices,
)
from transports.compression.base import (
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Gathered,
    GatheredCodec,
    Layout,
    Place,
    Shape,
)
from transports.compression.memory import Memory, forget_infinite

_RANGE_IN_SIGMAS: Final = 6.0


class _Part(NamedTuple):
    """Where a parameter's three parts end in its piece of a payload."""

    num_kept: int
    """Of each tile."""
    table_end: int
    indices_end: int
    end: int


@COMPRESSORS.register
class SparseLoCo(Gathered):
    """Chunked top-k with an error feedback that forgets, as the authors have it."""

    stateful: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "it keeps what it does not send by itself, and forgets it by `decay`"

    side: int = Field(64, ge=2, le=256)
    """Of a tile, at most; a vector is cut into runs of it."""
    kept: int = Field(32, ge=1, le=2**16)
    """Elements of each tile that are sent; all of those with fewer."""
    bits: Width = 2
    """Of a value."""
    decay: float = Field(0.95, ge=0, lt=1)
    """What remains of an element's error from one exchange to the next."""

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    def part(self, tiles: Tiles) -> _Part:
        """Of a parameter of such tiles."""
        num_kept = min(self.kept, tiles.num_elements)
        table_end = 4 << self.bits
        indices_end = table_end + index_bytes(tiles, num_kept)
        return _Part(
            num_kept, table_end, indices_end, indices_end + packed_bytes(num_kept * tiles.num_tiles, self.bits)
        )

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Tables, indices and bins."""
        return sum(self.part(tiles).end for _, _, tiles in parameters(shapes, self.side))

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(GatheredCodec):
    options: SparseLoCo  # type: ignore[misc]

    def __init__(self, options: SparseLoCo, place: Place) -> None:
        super().__init__(options, place)
        self._errors = Memory()

    def encode(self, values: Array, layout: Layout) -> Bytes:
        errors = self._errors.flat(layout)
        errors *= np.float32(self.options.decay)
        errors += values
        payload = np.empty(self.options.encoded_bytes(shapes_of(layout)), np.uint8)
        begin = 0
        for start, stop, tiles in parameters(shapes_of(layout), self.options.side):
            part = self.options.part(tiles)
            cut = tiles.cut(errors[start:stop])
            chosen = largest(cut, part.num_kept)
            table, bins = quantised(np.take_along_axis(cut, chosen, 1).ravel(), self.options.bits)
            piece = payload[begin : begin + part.end]
            piece[: part.table_end].view(np.float32)[:] = table
            piece[part.table_end : part.indices_end] = pack_indices(chosen, tiles)
            piece[part.indices_end :] = pack(bins, self.options.bits)
            begin += part.end
        self.add_decoded(payload, errors, -1.0, layout)
        forget_infinite(errors)
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        begin = 0
        for start, stop, tiles in parameters(shapes_of(layout), self.options.side):
            part = self.options.part(tiles)
            piece = payload[begin : begin + part.end]
            begin += part.end
            table = piece[: part.table_end].view(np.float32)
            chosen = unpack_indices(piece[part.table_end : part.indices_end], tiles, part.num_kept)
            bins = unpack(piece[part.indices_end :], self.options.bits)[: chosen.size]
            total[start:stop][tiles.places(chosen).ravel()] += table[bins] * np.float32(weight)


def quantised(values: Array, bits: Width) -> tuple[Array, npt.NDArray[np.uint8]]:
    """What each bin is decoded as, (2^bits,), and the bin of each value."""
    num_bins = 1 << bits
    wide = values.astype(np.float64)
    centred = wide - wide.mean()
    deviation = np.sqrt(np.square(centred).sum() / (len(wide) - 1)) if len(wide) > 1 else 0.0
    scale = _RANGE_IN_SIGMAS * deviation / num_bins
    if not (np.isfinite(scale) and scale > 0):
        scale = 1.0
    place = np.rint(centred / scale + num_bins // 2)
    bins = np.fmin(np.fmax(place, 0), num_bins - 1).astype(np.uint8)  # what is not a number is in the first
    counts = np.bincount(bins, minlength=num_bins)
    sums = np.bincount(bins, weights=wide, minlength=num_bins)
    return (sums / np.maximum(counts, 1)).astype(np.float32), bins
