"""Adam whose variance is frozen after a start, and whose momentum then travels in one bit for each element.

Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He 2021, "1-bit Adam: Communication Efficient Large-Scale Training
with Adam's Convergence Speed" (ICML), as in DeepSpeed's OnebitAdam (deepspeed/runtime/fp16/onebit/adam.py) and its
compressed_allreduce. For `start` exchanges the mean gradient is Adam's, uncompressed. From then on each worker goes on
with the momentum in its own gradient; its signs and their size are exchanged, with error feedback on both sides
(`_sharded.py`), and what comes of that is everybody's momentum.

What is put in place of the gradient is Adam's step, momentum over the root of the variance: the optimizer is to be
plain SGD, whose learning rate is Adam's. DeepSpeed gives signs one size in each parameter; here each part of a
parameter in a shard has its own. Where no gradient was ever seen before the variance froze there is nothing to divide
by: DeepSpeed asks for a mask of such elements, whose momentum it sets to zero; here they are found.

On the wire: the gradient as float32 in the first exchanges; then, of each part of a parameter in a shard, a float32,
and a bit per element.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from math import prod, sqrt
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from transports.compression._sharded import ExchangeOption, Sharded, ShardedCodec, Slices, require_slices_read
from transports.compression._start import Exchanges, uncompressed
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Compressor,
    Exchange,
    Exchanging,
    Layout,
    Pattern,
    Place,
    Shape,
    count,
    euclidean_norm,
)
from transports.compression.memory import Memory, forget_infinite

_SIZE_BYTES = 4


@COMPRESSORS.register
class OneBitAdam(Compressor):
    """The result is a step of Adam: the learning rate is its length."""

    summable: ClassVar[bool] = False
    stateful: ClassVar[bool] = True
    own_momentum: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "it feeds back what it leaves out of the momentum by itself"

    start: int = Field(2, ge=1, le=10_000_000)
    """Exchanges that go uncompressed, in which the variance is learnt: DeepSpeed's `freeze_step`; in the paper 15 to
    25 % of the training. At most as many as the workload warms up for, so that all measured iterations send the
    same."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Adam's first beta, in place of the optimizer's momentum."""
    variance_decay: float = Field(0.999, ge=0, lt=1)
    """Adam's second beta."""
    epsilon: float = Field(1e-8, gt=0, le=1)
    """Added to the root of the variance."""
    bias_correction: bool = True
    """Adam's, for moments that began at zero; DeepSpeed has none, for where `start` is long it makes no difference."""
    exchange: ExchangeOption = "auto"
    slices: Slices = 1

    @model_validator(mode="after")
    def _slices_are_read(self) -> Self:
        require_slices_read(self.exchange, self.slices)
        return self

    @property
    def unbiased(self) -> bool:
        """Small and large count the same."""
        return False

    @property
    def homogeneous(self) -> bool:
        """A step is the same for gradients of any size."""
        return False

    @property
    def settled_after(self) -> int:
        """As long as nothing is compressed."""
        return self.start

    @property
    def signs(self) -> "Signs":
        """What the momentum is coded with."""
        return _signs(self.exchange, self.slices)

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:
        """After the start."""
        return self.signs.pattern(shapes, num_workers)

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """After the start."""
        return self.signs.exchanges(shapes, num_workers)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class Signs(Sharded):
    """Signs times the root mean square of each part of a parameter, so that the length stays."""

    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """Small and large count the same."""
        return False

    def damping(self, num_elements: int) -> float:  # noqa: ARG002
        """1. It is no contraction: |C(x) - x|^2 = 2 (1 - r) |x|^2, with r = |x|_1 / (sqrt(n) |x|_2), is above |x|^2
        where few elements hold most of it; but the error of such an x has r = 0.7, and shrinks."""
        return 1.0

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Sizes and signs."""
        return _SIZE_BYTES * sum(1 for shape in shapes if prod(shape)) + -(-count(shapes) // 8)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return SignsCodec(self, place)


@cache
def _signs(exchange: ExchangeOption, slices: int) -> Signs:
    return Signs(exchange=exchange, slices=slices)


class SignsCodec(ShardedCodec):
    """Zero counts as positive."""

    options: Signs  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:
        """Sizes and signs."""
        sizes = [euclidean_norm(values[start:stop]) / sqrt(stop - start) for start, stop in _parts(layout)]
        return np.concatenate([np.array(sizes, np.float32).view(np.uint8), np.packbits(values < 0)])

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        """To what is there."""
        parts = list(_parts(layout))
        border = _SIZE_BYTES * len(parts)
        sizes = payload[:border].view(np.float32) * np.float32(weight)
        signs = payload[border:]
        for (start, stop), size in zip(parts, sizes, strict=True):
            both = np.array([size, -size])
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                below = np.unpackbits(signs[begin // 8 : -(-end // 8)])[begin % 8 :][: end - begin]
                total[begin:end] += both[below]


class _Codec(Codec):
    options: OneBitAdam  # type: ignore[misc]

    def __init__(self, options: OneBitAdam, place: Place) -> None:
        super().__init__(options, place)
        self._signs = SignsCodec(options.signs, place)
        self._momentum, self._deviation, self._errors = Memory(), Memory(), Memory()
        self._exchanges = Exchanges()

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        number = self._exchanges.next(layout)
        momentum, deviation = self._momentum.flat(layout), self._deviation.flat(layout)
        beta, whole = np.float32(self.options.momentum), np.float32(self.place.num_workers * weight)
        if number < self.options.start:
            yield from uncompressed(values, out, weight, error_feedback=False)
            mean = out / whole
            unseen = mean * 0  # what is not finite shows in the step, and is not kept
            np.nan_to_num(mean, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            momentum *= beta
            momentum += mean * (1 - beta)
            self._learn(deviation, mean)
            out[:] = self._step(momentum, deviation, number) + unseen
        else:
            momentum *= beta
            momentum += values * (1 - beta)
            errors = self._errors.flat(layout)
            errors += momentum
            yield from self._signs.exchange(errors, momentum, layout, 1 / self.place.num_workers)
            forget_infinite(errors)
            momentum *= deviation != 0
            out[:] = self._step(momentum, deviation, number)
            forget_infinite(momentum)
        out *= whole

    def _learn(self, deviation: Array, mean: Array) -> None:
        """The root of Adam's variance, without squares: those of a float32 above 1.8e19 or below 1e-23 are none."""
        decay = self.options.variance_decay
        deviation *= np.float32(sqrt(decay))
        np.hypot(deviation, mean * np.float32(sqrt(1 - decay)), out=deviation)

    def _step(self, momentum: Array, deviation: Array, number: int) -> Array:
        first = second = 1.0
        if self.options.bias_correction:
            first = 1 / (1 - self.options.momentum ** (number + 1))
            second = 1 / sqrt(1 - self.options.variance_decay ** min(number + 1, self.options.start))
        step = momentum / (deviation * np.float32(second) + np.float32(self.options.epsilon))
        step *= np.float32(first)
        return step


def _parts(layout: Layout) -> Iterator[tuple[int, int]]:
    """Start and stop of each that has elements."""
    start = 0
    for piece in layout:
        stop = start + prod(piece.shape)
        if stop > start:
            yield start, stop
        start = stop
