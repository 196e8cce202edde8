"""Random rounding to one of the two neighbouring powers of two: a sign and an exponent remain.

Horvath, Ho, Horvath, Sahu, Canini, Richtarik 2019, "Natural Compression for Distributed Deep Learning" (arXiv
1905.10988). On the wire: the 8 bits of the float32's exponent for each element, then a bit of sign for each.

A random integer of 23 bits is added to the mantissa: it carries into the exponent with the very probability that makes
the expectation right, in subnormal numbers too. Above 2^127 there is no next power: such values are sent as 2^127.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Range,
    Shape,
    chunks,
    count,
)

_MANTISSA_BITS: Final = np.uint32(23)
_MANTISSA: Final = np.uint32(2**23 - 1)
_SIZE: Final = np.uint32(2**31 - 1)
_INFINITY: Final = np.uint32(0xFF << 23)
_LARGEST_POWER: Final = np.uint32(0xFE << 23)


@COMPRESSORS.register
class Natural(Sharded):
    """Nine bits in all."""

    valid_range: ClassVar[Range] = Range(largest=2.0**127)

    @property
    def unbiased(self) -> bool:
        """The neighbouring power is drawn so that it is."""
        return True

    def variance(self, num_elements: int) -> float:  # noqa: ARG002
        """Theorem 1 of the paper."""
        return 1 / 8

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """One minus the variance."""
        return 7 / 8

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Exponents and signs."""
        num_elements = count(shapes)
        return num_elements + -(-num_elements // 8)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: Natural  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:  # noqa: ARG002
        payload = np.empty(self.options.encoded_bytes([values.shape]), np.uint8)
        exponents, signs = payload[: len(values)], payload[len(values) :]
        for start, stop in chunks(len(values), CHUNK):
            part = values[start:stop]
            signs[start // 8 : -(-stop // 8)] = np.packbits(np.signbit(part))
            drawn = np.frombuffer(self.private.bytes(4 * len(part)), np.uint32) & _MANTISSA
            size = part.view(np.uint32) & _SIZE
            if size.max() < _LARGEST_POWER:
                size += drawn
            else:  # large values would become infinite, and what is not a number would carry into the sign
                size = np.minimum(size + drawn, np.where(size < _INFINITY, _LARGEST_POWER, _INFINITY))
            size >>= _MANTISSA_BITS
            exponents[start:stop] = size
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        exponents, signs = payload[: len(total)], payload[len(total) :]
        for start, stop in chunks(len(total), CHUNK):
            bits = exponents[start:stop].astype(np.uint32)
            bits <<= _MANTISSA_BITS
            below = np.unpackbits(signs[start // 8 : -(-stop // 8)])[: stop - start].astype(np.uint32)
            below <<= np.uint32(31)
            bits |= below
            decoded = bits.view(np.float32)
            decoded *= np.float32(weight)
            total[start:stop] += decoded
