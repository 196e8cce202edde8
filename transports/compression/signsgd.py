"""One bit for each element: its sign. The workers vote.

Bernstein, Wang, Azizzadenesheli, Anandkumar 2018, "signSGD: Compressed Optimisation for Non-Convex Problems" (ICML), by
majority vote; with `scaled`, Karimireddy, Rebjock, Stich, Jaggi 2019, "Error Feedback Fixes SignSGD" (ICML). On the
wire: a bit per element, and with `scaled` a float32 before them; without it a bit after them says whether all were
finite: if not, the result is no number, for a vote would hide it. Zero counts as positive.
"""

from collections.abc import Sequence

import numpy as np

from transports.compression._levels import pack, packed_bytes, unpack
from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Shape,
    chunks,
    count,
)


@COMPRESSORS.register
class SignSgd(Sharded):
    """The result is +1, -1, or 0 in a tie: the learning rate is the length of the step."""

    scaled: bool = False
    """Signs are multiplied by the mean absolute value of the worker's bucket, and averaged."""

    @property
    def unbiased(self) -> bool:
        """Small and large count the same."""
        return False

    @property
    def homogeneous(self) -> bool:
        """A vote is the same for gradients of any size."""
        return self.scaled

    def contraction(self, num_elements: int) -> float | None:
        """Of the scaled one: |x|_1^2 / (n |x|_2^2), which is at least 1/n."""
        return 1 / num_elements if self.scaled and num_elements else None

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """The scale, if any, and signs."""
        num_elements = count(shapes)
        return 4 + -(-num_elements // 8) if self.scaled else -(-(num_elements + 1) // 8)

    def mean_bytes(self, shapes: Sequence[Shape]) -> int:
        """A vote has three outcomes, in 2 bits."""
        return super().mean_bytes(shapes) if self.scaled else packed_bytes(count(shapes), 2)

    def mean_contraction(self, num_elements: int) -> float | None:
        """Votes are encoded exactly."""
        return super().mean_contraction(num_elements) if self.scaled else 1.0

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: SignSgd  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:  # noqa: ARG002
        if not self.options.scaled:
            return np.packbits(np.append(values < 0, not np.isfinite(values).all()))
        # In float64: a sum of large values that float32 has no room for has a mean that it has.
        total = sum(
            float(np.abs(values[start:stop]).sum(dtype=np.float64)) for start, stop in chunks(len(values), CHUNK)
        )
        return np.concatenate([np.array([total / len(values)], np.float32).view(np.uint8), np.packbits(values < 0)])

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        scale = np.float32(weight)
        if self.options.scaled:
            scale *= payload[:4].view(np.float32)[0]
            payload = payload[4:]
        elif payload[len(total) // 8] >> (7 - len(total) % 8) & 1:
            total.fill(np.nan)
        for start, stop in chunks(len(total), CHUNK):
            signs = np.unpackbits(payload[start // 8 : -(-stop // 8)])[: stop - start].view(np.int8)
            signs *= -2
            signs += 1
            total[start:stop] += signs * scale  # never twice the scale, for which there may be no room

    def encode_mean_into(self, payload: Bytes, mean: Array, layout: Layout) -> None:
        if self.options.scaled:
            super().encode_mean_into(payload, mean, layout)
            return
        votes = np.nan_to_num(np.sign(mean), nan=2.0) + 1  # the fourth level is no number
        payload[:] = pack(votes.astype(np.uint8), 2)

    def add_decoded_mean(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        if self.options.scaled:
            super().add_decoded_mean(payload, total, weight, layout)
            return
        votes = np.array([-1, 0, 1, np.nan], np.float32) * np.float32(weight)
        total += np.take(votes, unpack(payload, 2)[: len(total)])

    def finish(self, out: Array, weight: float) -> None:
        if self.options.scaled:
            return
        for start, stop in chunks(len(out), CHUNK):
            votes = out[start:stop]
            votes /= np.float32(weight)
            np.rint(votes, out=votes)  # an even vote is exactly 0
            np.clip(votes, -1, 1, out=votes)
            votes *= np.float32(self.place.num_workers * weight)
