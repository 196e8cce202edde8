"""Blocks of elements with a scale of their own, which no two parameters share: a layer whose gradients are a million
times smaller than its neighbour's in the bucket keeps its bits. On the wire: a float32 per block, then a byte per
element.

Coding is native where there is a C compiler (`_native/blocks.c`), and in numpy where there is none, to the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import numpy as np
from pydantic import Field

from transports.compression._native import blocks as native
from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    FLOAT32_MAX,
    SMALLEST_PEAK,
    Array,
    Bytes,
    Layout,
    Range,
    Shape,
    blocks_of,
    chunks,
    count,
)

SCALE_BYTES: Final = 4
"""Of a block's scale, a float32."""


class Code(NamedTuple):
    """What a byte stands for."""

    name: native.CodeName
    largest: float
    """What a block's largest absolute value becomes."""
    narrow: Callable[[Array, Bytes], None]
    """Write the codes of scaled values (n,), which may change, into bytes (n,)."""
    wide: Callable[[Bytes], Array]
    """What bytes stand for, of their shape: a new array."""


class Blocked(Sharded):
    """A compressor of one byte for each element and a scale for each block of a parameter."""

    valid_range: ClassVar[Range] = Range(floor=SMALLEST_PEAK)
    code: ClassVar[Code]
    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = (native.build_library,)

    block: int = Field(256, ge=1, le=2**14)
    """Elements of a parameter that share a scale."""

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Scales and a byte for each element."""
        return SCALE_BYTES * num_blocks(shapes, self.block) + count(shapes)


class BlockCodec(ShardedCodec):
    """Codes blocks in whatever code the compressor has."""

    options: Blocked  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:
        """Scales and codes."""
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        self.encode_into(payload, values, layout)
        return payload

    def encode_into(self, payload: Bytes, values: Array, layout: Layout) -> None:
        """Without a copy."""
        code, block = self.options.code, self.options.block
        scales, codes = _divided(payload, len(values))
        if (library := native.library()) is not None:
            native.encode(library, code.name, values, lengths_of(layout), block, scales, codes)
        else:
            encode(code, values, layout, block, scales, codes)

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        """To what is there."""
        self._decode(payload, total, weight, layout, fresh=False)

    def put_decoded(self, payload: Bytes, out: Array, weight: float, layout: Layout) -> None:
        """In place of what is there, which need not be read then."""
        self._decode(payload, out, weight, layout, fresh=True)

    def put_decoded_mean(self, payload: Bytes, out: Array, weight: float, layout: Layout) -> None:
        """Means are coded as their parts were."""
        self._decode(payload, out, weight, layout, fresh=True)

    def _decode(self, payload: Bytes, total: Array, weight: float, layout: Layout, *, fresh: bool) -> None:
        code, block = self.options.code, self.options.block
        scales, codes = _divided(payload, len(total))
        if (library := native.library()) is not None:
            native.decode(library, code.name, scales, codes, lengths_of(layout), block, weight, total, fresh=fresh)
            return
        if fresh:
            total.fill(0.0)
        add_decoded(code, scales, codes, layout, block, weight, total)


def encode(code: Code, values: Array, layout: Layout, block: int, scales: Bytes, codes: Bytes) -> None:
    """Write a scale for each block and a code for each element: `encode_blocks` of blocks.c."""
    for first, start, stop in runs(layout, block):
        blocks = blocks_of(values, start, stop, block)
        scales.view(np.float32)[first : first + len(blocks)], inverses = scales_of(blocks, code.largest)
        scaled = blocks * inverses[:, None]
        code.narrow(scaled.reshape(-1)[: stop - start], codes[start:stop])


def add_decoded(
    code: Code, scales: Bytes, codes: Bytes, layout: Layout, block: int, weight: float, total: Array
) -> None:
    """Add `weight` times what is coded to the total: `decode_blocks` of blocks.c."""
    weighted = scales.view(np.float32) * np.float32(weight)
    for first, start, stop in runs(layout, block):
        decoded = code.wide(blocks_of(codes, start, stop, block))
        decoded *= weighted[first : first + len(decoded), None]
        total[start:stop] += decoded.reshape(-1)[: stop - start]


def _divided(payload: Bytes, num_elements: int) -> tuple[Bytes, Bytes]:
    """Scales and codes."""
    border = len(payload) - num_elements
    return payload[:border], payload[border:]


class Run(NamedTuple):
    """Elements of one parameter, whole blocks but for its last one."""

    first_block: int
    start: int
    stop: int


def lengths_of(layout: Layout) -> list[int]:
    """Elements of each parameter."""
    return [prod(piece.shape) for piece in layout]


def num_blocks(shapes: Sequence[Shape], block: int) -> int:
    """Blocks of so many elements for parameters of these shapes; the last of each may be shorter."""
    return sum(-(-prod(shape) // block) for shape in shapes)


def runs(layout: Layout, block: int) -> Iterator[Run]:
    """All elements in order, in runs that fit the cache."""
    first_block = begin = 0
    for piece in layout:
        num_elements = prod(piece.shape)
        for start, stop in chunks(num_elements, block):
            yield Run(first_block + start // block, begin + start, begin + stop)
        first_block += -(-num_elements // block)
        begin += num_elements


def scales_of(blocks: Array, largest: float) -> tuple[Array, Array]:
    """For (blocks, elements) the scales (blocks,) that make their largest values `largest`, and the inverses; zeros
    where a block is too small for an inverse. A value times its inverse and then its scale is finite if it was.

    Those of a block with something that is not finite are not finite either, or zero.
    """
    peaks = np.abs(blocks).max(axis=1)
    scales = np.minimum(peaks, FLOAT32_MAX * (1 - 2.0**-20), where=np.isfinite(peaks), out=peaks.copy())
    scales /= np.float32(largest)
    inverses = np.divide(largest, peaks, out=np.zeros_like(peaks), where=peaks > SMALLEST_PEAK)
    return scales, inverses
