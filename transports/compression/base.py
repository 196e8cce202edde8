"""What the bytes are: a compressor says what it sends of a gradient, a codec does it.

A codec's :meth:`Codec.exchange` is a generator of requests: it yields an :class:`AllReduce`, :class:`AllGather` or
:class:`AllToAll`, perhaps with something to do :class:`Meanwhile`, is given the answer, and ends when the gradient
holds the mean over the workers. It does no input or output, so the same generator is driven over a network by
`transports/execution/gradients.py`, as one job of the communication thread, and in lock-step, in one process, by the
tests. Every worker's generator yields the same requests in the same order.

What a codec is given is a worker's tensor as it is, and what it puts in its place is a weight times the sum of what all
workers sent: 1/N for the mean of gradients that nobody has divided, as a DistributedDataParallel hook sees them; 1 for
the sum that DistributedDataParallel without a hook asks a process group for, having divided before. Both have the
same result wherever decoding scales with the gradients (:attr:`Compressor.homogeneous`); nothing else is let into a
process group (:func:`require_for_group`).

Values are float32 (n,) in numpy, on one thread. torch is imported where an element type needs it: a plan lists
compressors and must start in an instant.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction as Rational
from functools import lru_cache
from math import ceil, prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from transports.collectives.base import Collective, Operation
from transports.errors import OptionError
from transports.registry import Options, Registry
from transports.units import Fraction

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

ELEMENT_BYTES: Final = 4
"""Of an uncompressed gradient's element, a float32."""
LENGTH_BYTES: Final = 8
"""What says how long a payload is where that depends on the values: an int64."""
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
FLOAT32_MIN_NORMAL: Final = 2.0**-126
SMALLEST_PEAK: Final = 2.0**-119
"""Blocks whose largest value is not above this are sent as zeros: 448 divided by much less would be infinite, and a
127th of it would have lost bits."""
CHUNK: Final = 2**16
"""Elements worked on at once: with their temporaries they stay in a core's own cache."""


class Piece(NamedTuple):
    """A parameter's part of a bucket."""

    key: Hashable
    """Names the parameter for as long as the codec lives."""
    shape: Shape


Layout = Sequence[Piece]
"""What a flat buffer is made of, in order."""


class AllReduce(NamedTuple):
    """Reduce this tensor over all workers, in place; answered with None."""

    tensor: "Tensor"
    operation: Literal["sum", "max"]


class AllGather(NamedTuple):
    """Give everybody's payload to everybody; answered with the payloads by rank."""

    payload: Bytes
    varying: bool
    """Whether lengths differ between workers. They are then exchanged first, and the longest decides what moves."""


class AllToAll(NamedTuple):
    """Give each its own payload; answered with those for this worker, as many and as long, by rank."""

    payloads: Bytes
    """(num_workers, bytes), a row for each rank."""


Request = AllReduce | AllGather | AllToAll


class Meanwhile(NamedTuple):
    """A request, answered as such, and what to compute while it is under way, on another thread: it has nothing to do
    with what the request holds."""

    request: Request
    work: Callable[[], None]


Exchanging = Generator[Request | Meanwhile, Any, None]


class Exchange(NamedTuple):
    """One collective operation that a compressor asks for; elements as in `Operation`: those of the larger buffer."""

    operation: Operation
    num_elements: int
    element_bytes: int
    of_gradients: bool = True
    """False: workers agree on something by it."""
    sums_floats: bool = True
    """False: an all_reduce of integers, or one that takes the greatest, which nothing on the way does."""

    def payload_bytes(self, num_workers: int) -> int:
        """What one worker hands over of gradients."""
        size_bytes = self.num_elements * self.element_bytes * self.of_gradients
        return size_bytes // num_workers if self.operation == "all_gather" else size_bytes

    def link_bytes(self, collective: Collective) -> int | None:
        """See :meth:`Collective.link_bytes`."""
        if not self.sums_floats:
            return None
        return collective.link_bytes(self.operation, self.num_elements, self.element_bytes)


Pattern = Literal["reduce", "gather", "two_phase"]
"""How payloads meet: added up on the way; gathered and decoded by everybody; or each shard by its owner, see
`_sharded.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a codec works."""

    rank: int
    num_workers: int
    seed: int
    """The same on every worker."""


class Range(NamedTuple):
    """Where `contraction` and `variance` hold."""

    floor: float = FLOAT32_MIN_NORMAL
    """An element may err by this much more than they say: what lies near zero has fewer bits, or none. Of what is
    summed, so that in a mean of N workers that divide before they cast it counts N times."""
    largest: float = FLOAT32_MAX
    """Up to this absolute value. A larger finite one is sent as a smaller one, so that no result becomes infinite of
    itself, except where `overflows` says so."""


class Compressor(Options):
    """A value on the compression axis. Its properties are what the tests prove of its codec.

    Where a worker's gradient has an element that is not finite, the mean that every worker gets has one, too.
    """

    compresses: ClassVar[bool] = True
    """Whether anything becomes of gradients at all; if not, they go as they are, without a codec."""
    summable: ClassVar[bool]
    """Whether payloads add up: decoding the sum is the sum of what is decoded. They are reduced; others gathered."""
    data_dependent: ClassVar[bool] = False
    """Whether the number of bytes depends on the values, so that only an estimate can be had beforehand."""
    stateful: ClassVar[bool] = False
    """Whether the codec remembers something of each parameter beside the error fed back."""
    replicas_agree: ClassVar[bool] = True
    """Whether every worker ends with the same mean."""
    own_momentum: ClassVar[bool] = False
    """Whether the codec applies the momentum, so that the optimizer must not."""
    own_type: ClassVar[bool] = False
    """Whether elements travel, and are added, in the gradient's own type. All others compute in float32, and what they
    send does not depend on the type."""
    valid_range: ClassVar[Range] = Range()
    overflows: ClassVar[bool] = False
    """Whether without error feedback a finite element beyond the range becomes infinite, for a gradient scaler to see,
    instead of the largest."""

    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = ()
    """What builds the C that its codec loads, and says where it is: ahead for containers, which have no compiler."""

    no_feedback: ClassVar[str] = ""
    """Why error feedback makes no sense here, and what does."""

    error_feedback: bool = False
    """Add what a worker did not send to what it sends next (Seide et al. 2014; Karimireddy et al. 2019)."""

    @model_validator(mode="after")
    def _error_feedback_is_sound(self) -> "Compressor":
        if self.error_feedback and (self.no_feedback or self.damping(CHUNK) is None):
            reason = self.no_feedback or "the error would grow without bound, for this is no contraction"
            raise ValueError(f"error_feedback is not for {self.kind}: {reason}")
        return self

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether the expectation of what is decoded is what was encoded, to a rounding of the largest value that it
        shares a scale with (2^-24 of it)."""

    @property
    def homogeneous(self) -> bool:
        """Whether what is decoded scales with the gradients: C(a x) = a C(x) for every a > 0, but for roundings.

        A compressor that is not has to be given gradients in their own unit. A process group cannot know whether they
        are: DistributedDataParallel divides them by the number of workers before it asks for a sum, scripts of one's
        own divide the sum.
        """
        return True

    def contraction(self, num_elements: int) -> float | None:  # noqa: ARG002 (most depend on it)
        """The largest d known with E|C(x) - x|^2 <= (1 - d) |x|^2 for all x of that length, or None."""
        return None

    def variance(self, num_elements: int) -> float | None:  # noqa: ARG002
        """Of an unbiased compressor the least w known with E|C(x) - x|^2 <= w |x|^2, or None."""
        return None

    def damping(self, num_elements: int) -> float | None:
        """What error feedback multiplies decoded values with; None where the error would not stay bounded.

        A contraction needs none. An unbiased compressor C of variance w becomes one as C / (1 + w), of contraction
        1 / (1 + w) (Beznosikov, Horvath, Richtarik, Safaryan 2020, "On Biased Compression for Distributed Learning").
        """
        if self.contraction(num_elements) is not None:
            return 1.0
        variance = self.variance(num_elements)
        return None if variance is None else 1 / (1 + variance)

    def lost(self, num_elements: int, num_workers: int) -> float | None:  # noqa: ARG002 (others depend on it)
        """The least q known with |result - mean| <= q times the mean of the workers' |x|; for a compressor that draws
        at random, of what is expected. None where nothing is known of a single exchange."""
        contraction = None if self.remembers else self.contraction(num_elements)
        return None if contraction is None else sqrt(1 - contraction)

    @property
    def remembers(self) -> bool:
        """Whether the codec keeps anything between exchanges but its random generators."""
        return self.stateful or self.error_feedback

    @property
    def settled_after(self) -> int:
        """Exchanges of each bucket that ask for something else, before those that `exchanges` tells of."""
        return 0

    def check_world(self, num_workers: int) -> None:
        """Raises OptionError where so many workers cannot use these options."""

    @abstractmethod
    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:
        """How payloads for a bucket of gradients of these shapes meet. Pure, so that all workers come to the same."""

    @abstractmethod
    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """The operations for a bucket of gradients of these shapes: exactly those that the codec asks for or, where
        they depend on the values, an estimate."""

    def payload_bytes(self, shapes: Sequence[Shape], num_workers: int) -> int | None:
        """What one worker hands over for a bucket of gradients of these shapes, scales, indices and lengths included;
        None: it depends on the values."""
        if self.data_dependent:
            return None
        return sum(exchange.payload_bytes(num_workers) for exchange in self.exchanges(shapes, num_workers))

    @abstractmethod
    def codec(self, place: Place) -> "Codec":
        """One worker's."""


class Summed(Compressor):
    """A compressor whose payloads are reduced, by any collective that can all_reduce."""

    summable: ClassVar[bool] = True

    @abstractmethod
    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """Elements, and bytes of each, of every all_reduce."""

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:  # noqa: ARG002
        """Always."""
        return "reduce"

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:  # noqa: ARG002
        """All-reduces."""
        return [Exchange("all_reduce", *reduction) for reduction in self.reductions(shapes)]


class Gathered(Compressor):
    """A compressor whose payloads every worker gathers, decodes and averages."""

    summable: ClassVar[bool] = False

    @abstractmethod
    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """The length of a payload; an estimate where it depends on the values."""

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:  # noqa: ARG002
        """Always, but of what can be coded by shards."""
        return "gather"

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """One all_gather, after one of the lengths where they vary."""
        gather = Exchange("all_gather", num_workers * self.encoded_bytes(shapes), 1)
        return [Exchange("all_gather", num_workers, LENGTH_BYTES), gather] if self.data_dependent else [gather]


class Codec:
    """One worker's encoder and decoder, with the state and the random generators they need."""

    def __init__(self, options: Compressor, place: Place) -> None:
        self.options: Final = options
        self.place: Final = place
        self.shared: Final = np.random.Generator(np.random.SFC64([place.seed]))
        """Gives the same numbers on every worker, as long as all draw the same from it."""
        self.private: Final = np.random.Generator(np.random.SFC64([place.seed, 1 + place.rank]))

    @abstractmethod
    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        """Put `weight` times the sum of what all workers sent into `out`: 1/N for the mean.

        The two may be the same array, except with error feedback: `values` then ends as what was not sent."""

    def damping(self, num_elements: int) -> float:
        """1, except where error feedback needs less."""
        damping = self.options.damping(num_elements) if self.options.error_feedback else 1.0
        assert damping is not None, "the options were validated"
        return damping


class OwnTypeCodec(Codec):
    """One that works on the gradient in its own type: see :attr:`Compressor.own_type`."""

    @abstractmethod
    def exchange_tensor(self, buffer: "Tensor", weight: float) -> Exchanging:
        """`weight` times the sum of what all workers sent, in place of the contiguous buffer (n,)."""

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        """Of float32."""
        import torch

        if out is not values:
            out[:] = values
        yield from self.exchange_tensor(torch.from_numpy(out), weight)


class GatheredCodec(Codec):
    """Encodes, gathers, and adds what it decodes, in the order of the ranks: every worker gets the same bits."""

    @abstractmethod
    def encode(self, values: Array, layout: Layout) -> Bytes:
        """The payload. The values stay as they are."""

    def encode_into(self, payload: Bytes, values: Array, layout: Layout) -> None:
        """The same, in memory of that length."""
        payload[:] = self.encode(values, layout)

    @abstractmethod
    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        """Add `weight` times what the payload says to the total."""

    def put_decoded(self, payload: Bytes, out: Array, weight: float, layout: Layout) -> None:
        """Put `weight` times what the payload says in place of what is there."""
        out.fill(0.0)
        self.add_decoded(payload, out, weight, layout)

    def finish(self, out: Array, weight: float) -> None:
        """Make the result of `weight` times the sum, in place."""

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        """One round."""
        payload = self.encode(values, layout)
        payloads: list[Bytes] = yield AllGather(payload, self.options.data_dependent)
        damping = self.damping(len(values))
        if self.options.error_feedback:
            self.add_decoded(payload, values, -damping, layout)
        for number, each in enumerate(payloads):
            decode = self.add_decoded if number else self.put_decoded
            decode(each, out, damping * weight, layout)
        self.finish(out, weight)


def count(shapes: Sequence[Shape]) -> int:
    """Elements of gradients of these shapes."""
    return sum(prod(shape) for shape in shapes)


def written(value: float) -> Rational:
    """The decimal that the user wrote, exactly: 7/100 for 0.07, whose float is a little more."""
    return Rational(repr(float(value)))


@lru_cache(maxsize=1024)
def num_kept(num_elements: int, ratio: float) -> int:
    """Elements that a sparsifier keeps: the ratio, rounded up, at least one."""
    return min(num_elements, max(1, ceil(num_elements * written(ratio))))


def euclidean_norm(values: Array) -> float:
    """In float64: a square of a float32 above 1.8e19 or below 1e-23 is none."""
    return sqrt(
        sum(float(np.square(values[start:stop], dtype=np.float64).sum()) for start, stop in chunks(len(values), CHUNK))
    )


def limited(values: Array, largest: float) -> Array:
    """The values, finite ones at most so large; the array itself where there is nothing to limit."""
    if not (values.max() > largest or values.min() < -largest):
        return values
    return np.where(np.isinf(values), values, np.clip(values, -largest, largest))


def chunks(num_elements: int, block: int) -> Iterator[tuple[int, int]]:
    """Start and stop of runs of whole blocks that fit the cache; the last may end in the middle of a block."""
    step = max(block, CHUNK // block * block)
    for start in range(0, num_elements, step):
        yield start, min(start + step, num_elements)


def blocks_of(values: npt.NDArray[Any], start: int, stop: int, block: int) -> npt.NDArray[Any]:
    """values[start:stop] as (blocks, block): a view, or a copy ended with zeros where the last block is not whole."""
    part = values[start:stop]
    missing = -len(part) % block
    return (np.concatenate([part, np.zeros(missing, part.dtype)]) if missing else part).reshape(-1, block)


def _above_zero(ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise ValueError("a ratio is above 0 and at most 1")
    return ratio


Ratio = Annotated[Fraction, AfterValidator(_above_zero), Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": 1})]
"""The share of elements that a sparsifier sends: `1%` or 0.01."""

COMPRESSORS: Final[Registry[Compressor]] = Registry("compression", "transports.compression")


def require_for_group(compressor: Compressor) -> None:
    """Raises OptionError, with the fix, for what cannot sit in a process group, which sees tensors and no parameters,
    and does not know by what they were divided."""
    perhaps = ""
    if compressor.remembers or compressor.own_momentum:
        reason = "it keeps a state for each parameter, and a process group sees only tensors"
        perhaps = ", or set error_feedback to false where that is all"
    elif not compressor.replicas_agree:
        reason = "it leaves every rank values of its own"
    elif not compressor.homogeneous:
        reason = (
            "its result does not scale with the gradients, and a process group cannot know by what they were divided "
            "before (DistributedDataParallel divides by the number of workers, then asks for a sum)"
        )
    else:
        return
    raise OptionError(
        f"compression {compressor.kind}: {reason}; leave TESTBED_COMPRESSION out and call "
        f"transports.torch_backend.ddp_hook.register(model, compression){perhaps}"
    )
