"""The largest components of each tile of a momentum, after a discrete cosine transform; what is sent leaves it.

Peng, Quesnelle, Kingma 2024, "DeMo: Decoupled Momentum Optimization" (arXiv 2411.19870), as in the authors'
github.com/bloc97/DeMo: m = decay x m + gradient; of each tile's transform the `kept` largest components go out and
leave m, so that slow components stay with each worker. The mean of what all send is transformed back; its sign is the
step. The authors divide what comes of a component by the number of workers that sent it; here the mean is over all.

On the wire, for each parameter: the indices in a tile (12 bits among 64 x 64), then the components as float32. The
momentum is applied here, so the optimizer must have none.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from transports.compression._tiles import (
    Indices,
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
    ELEMENT_BYTES,
    AllGather,
    Array,
    Bytes,
    Codec,
    Exchanging,
    Gathered,
    Layout,
    Place,
    Range,
    Shape,
    limited,
)
from transports.compression.memory import Memory, forget_infinite


@COMPRESSORS.register
class DecoupledMomentum(Gathered):
    """With `sign` the result is +1, -1 or 0: the learning rate is the length of the step."""

    stateful: ClassVar[bool] = True
    own_momentum: ClassVar[bool] = True
    valid_range: ClassVar[Range] = Range(floor=2.0**-117, largest=2.0**112)
    no_feedback: ClassVar[str] = "what is not sent stays in its momentum"

    side: int = Field(64, ge=2, le=256)
    """Of a tile, at most; a vector is cut into runs of it."""
    kept: int = Field(32, ge=1, le=2**16)
    """Components of each tile that are sent; all of those with fewer."""
    decay: float = Field(0.999, ge=0, lt=1)
    """What remains of the momentum from one exchange to the next."""
    sign: bool = True
    """Whether the result is the sign of the mean, as the authors' optimizer has it, or the mean itself."""

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    @property
    def homogeneous(self) -> bool:
        """A sign is the same for gradients of any size."""
        return not self.sign

    def ends(self, tiles: Tiles) -> tuple[int, int]:
        """Of the indices, and of the components, in a parameter's piece of a payload."""
        num_kept = min(self.kept, tiles.num_elements)
        indices = index_bytes(tiles, num_kept)
        return indices, indices + ELEMENT_BYTES * num_kept * tiles.num_tiles

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Indices and components."""
        return sum(self.ends(tiles)[1] for _, _, tiles in parameters(shapes, self.side))

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(Codec):
    options: DecoupledMomentum  # type: ignore[misc]

    def __init__(self, options: DecoupledMomentum, place: Place) -> None:
        super().__init__(options, place)
        self._momentum = Memory()

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        payloads: list[Bytes] = yield AllGather(self._encode(values, layout), varying=False)
        scale = np.float32(weight)
        for start, stop, tiles, piece in self._pieces(layout):
            components = np.zeros((tiles.num_tiles, tiles.num_elements), np.float32)
            for payload in payloads:
                chosen, sent = self._decoded(payload[piece], tiles)
                np.put_along_axis(components, chosen, np.take_along_axis(components, chosen, 1) + sent * scale, 1)
            result = tiles.joined(transformed_back(components, tiles))
            if self.options.sign:
                signs = np.where(np.isfinite(result), np.sign(result), np.float32(np.nan))
                result = signs * np.float32(self.place.num_workers * weight)
            out[start:stop] = result

    def _encode(self, values: Array, layout: Layout) -> Bytes:
        momentum = self._momentum.flat(layout)
        momentum *= np.float32(self.options.decay)
        momentum += values
        given = limited(momentum, self.options.valid_range.largest)
        payload = np.empty(self.options.encoded_bytes(shapes_of(layout)), np.uint8)
        for start, stop, tiles, piece in self._pieces(layout):
            border, _ = self.options.ends(tiles)
            components = transformed(tiles.cut(given[start:stop]), tiles)
            chosen = largest(components, min(self.options.kept, tiles.num_elements))
            sent = np.take_along_axis(components, chosen, 1)
            payload[piece][:border] = pack_indices(chosen, tiles)
            payload[piece][border:] = sent.reshape(-1).view(np.uint8)
            leaving = np.zeros_like(components)
            np.put_along_axis(leaving, chosen, sent, 1)
            momentum[start:stop] -= tiles.joined(transformed_back(leaving, tiles))
        forget_infinite(momentum)
        return payload

    def _decoded(self, piece: Bytes, tiles: Tiles) -> tuple[Indices, Array]:
        border, _ = self.options.ends(tiles)
        chosen = unpack_indices(piece[:border], tiles, min(self.options.kept, tiles.num_elements))
        return chosen, piece[border:].view(np.float32).reshape(chosen.shape)

    def _pieces(self, layout: Layout) -> Iterator[tuple[int, int, Tiles, slice]]:
        """Of each parameter start and stop in the bucket, tiles, and its piece of a payload."""
        begin = 0
        for start, stop, tiles in parameters(shapes_of(layout), self.options.side):
            end = begin + self.options.ends(tiles)[1]
            yield start, stop, tiles, slice(begin, end)
            begin = end


@lru_cache
def cosines(length: int) -> Array:
    """The orthonormal matrix (length, length) of the discrete cosine transform of type II, a row for each component."""
    component, place = np.arange(length)[:, None], np.arange(length)
    matrix = np.sqrt(2 / length) * np.cos(np.pi * (2 * place + 1) * component / (2 * length))
    matrix[0] /= np.sqrt(2)
    narrow: Array = matrix.astype(np.float32)
    return narrow


def transformed(cut: Array, tiles: Tiles) -> Array:
    """The components of each tile, in both directions."""
    grid = cut.reshape(-1, tiles.height, tiles.width)
    components: npt.NDArray[Any] = cosines(tiles.height) @ grid @ cosines(tiles.width).T
    return components.reshape(cut.shape)


def transformed_back(components: Array, tiles: Tiles) -> Array:
    """The inverse."""
    grid = components.reshape(-1, tiles.height, tiles.width)
    cut: npt.NDArray[Any] = cosines(tiles.height).T @ grid @ cosines(tiles.width)
    return cut.reshape(components.shape)
