"""What the elements of a chunk are: one 32-bit integer in each word, or two or four narrower ones. Pure.

The switch adds in registers of 32 bits whatever crosses the links. Sums of `int32` leave as they are: contributions
have left room for everybody's. Narrower contributions use all of their bits, and so the switch hands their sum down
divided by the least power of two that is not less than the number of workers, rounded half to even: it has a
contribution's width again, and the links carry the same in both directions.

A half-precision float has the bits of `fp16`; here they are a whole number under the exponent that the chunk shares
(block floating point), because a switch adds integers.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from switch_agg.wire import WIRE_ELEMENT, Elements, Kind

PayloadName = Literal["int32", "fp16", "int8"]
PAYLOAD_NAMES: Final[tuple[PayloadName, ...]] = get_args(PayloadName)
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Payload:
    """One of them."""

    kind: Kind
    """Of its datagrams, in both directions."""
    bits: int
    """Of each integer."""
    headroom: int
    """Doublings that a block may grow by from one reduction to the next without being done again, a bit each."""

    @property
    def lanes(self) -> int:
        """Integers in a word of 32 bits."""
        return 32 // self.bits

    @property
    def dtype(self) -> np.dtype[np.signedinteger]:
        """Of an integer on the wire."""
        return np.dtype(f">i{self.bits // 8}")

    def carries(self, kind: Kind) -> bool:
        """Whether a datagram of that kind has such elements."""
        return kind == self.kind or (kind == Kind.SATURATED and self.lanes == 1)

    def shift_base(self, num_workers: int) -> int:
        """The power of two that a block of exponent 0 is multiplied by: 32 bits leave room for the sum of so many
        workers, and a bit for rounding up."""
        return 30 - self._doublings(num_workers) if self.lanes == 1 else self.bits - 1

    def limit(self, num_workers: int) -> int:
        """The largest magnitude of a contribution."""
        return 1 << self.shift_base(num_workers) if self.lanes == 1 else (1 << self.bits - 1) - 1

    def rounding(self, num_workers: int) -> int:
        """The power of two that the switch divides a sum by."""
        return 0 if self.lanes == 1 else self._doublings(num_workers)

    def integers(self, words: Elements) -> Integers:
        """(..., words) as they are on the wire, in host order -> (..., words x lanes)."""
        if self.lanes == 1:
            return words.astype(np.int64)
        return np.ascontiguousarray(words.astype(WIRE_ELEMENT)).view(self.dtype).astype(np.int64)

    def words(self, integers: Integers) -> Elements:
        """The inverse of :meth:`integers`, for integers in range."""
        return np.ascontiguousarray(integers.astype(self.dtype)).view(WIRE_ELEMENT).astype(np.int32)

    def rounded(self, sums: Integers, num_workers: int) -> Integers:
        """What the switch hands down: half to even, because always up would push every gradient the same way."""
        doublings = self.rounding(num_workers)
        if doublings == 0:
            return sums
        return sums + ((1 << doublings - 1) - 1 + (sums >> doublings & 1)) >> doublings

    @staticmethod
    def _doublings(num_workers: int) -> int:
        return (num_workers - 1).bit_length()


PAYLOADS: Final[dict[PayloadName, Payload]] = {
    "int32": Payload(Kind.DATA_32, 32, 4),
    "fp16": Payload(Kind.DATA_16, 16, 2),
    "int8": Payload(Kind.DATA_8, 8, 1),
}
INT32: Final = PAYLOADS["int32"]
MAX_KERNEL_VALUES: Final = 2048
"""Integers in a chunk of the data plane ebpf: the kernel's verifier walks through every loop."""
