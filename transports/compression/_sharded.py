"""The exchange in two phases, for payloads that do not add up: a reduce-scatter and an all-gather of coded values.

A bucket is cut into as many shards as there are workers. Each worker codes each shard and sends it to its owner
(all-to-all); the owner decodes and averages, codes the mean again, and everybody gathers the means. A link carries
2 (N - 1) / N payloads in each direction where gathering whole payloads takes N - 1, and a worker decodes two buckets
and not N. All workers decode the same bytes, so they end with the same bits.

This is how CNTK exchanges 1-bit gradients, each node with a stripe of its own and the error of the second quantisation
kept there (Seide, Fu, Droppo, Li, Yu 2014, Interspeech, section 3.2), and what DeepSpeed's compressed_allreduce does,
with a worker's and a server's error (Tang et al. 2021, "1-bit Adam", ICML). With error feedback on both sides both
errors stay bounded wherever one coding is a contraction (Tang, Yu, Lian, Zhang, Liu 2019, "DoubleSqueeze", ICML).
Without it a coding that leaves |C(x) - x| <= q |x| leaves at most 2 q + q^2 of the mean of the workers' norms.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, islice, pairwise, zip_longest
from math import prod, sqrt
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from transports.collectives.base import Operation
from transports.compression.base import (
    AllGather,
    AllToAll,
    Array,
    Bytes,
    Compressor,
    Exchange,
    Exchanging,
    Gathered,
    GatheredCodec,
    Layout,
    Meanwhile,
    Pattern,
    Piece,
    Place,
    Request,
    Shape,
    count,
)
from transports.compression.memory import Memory, Scratch, forget_infinite

ROUND_BYTES: Final = 12_500
"""What the second round of messages is reckoned to cost: what a link of 1 Gbit/s carries in 100 us, the rate and the
latency that `collective: auto` takes where the links are unknown."""
LEAST_KEPT: Final = 0.75
"""Of the square: how much of it a second coding must keep, at worst, to be chosen where no error is fed back."""
_GRAIN: Final = 8
"""Shards are multiples of so many elements, but for the last: signs fill whole bytes."""


ExchangeOption = Literal["auto", "gather", "two_phase"]
Slices = Annotated[int, Field(ge=1, le=64)]


def require_slices_read(exchange: ExchangeOption, slices: int) -> None:
    """Raises ValueError for slices of an exchange that has none. By value: plain data that a spec comes back from names
    every option."""
    if exchange == "gather" and slices != 1:
        raise ValueError("slices: `gather` sends whole payloads; say exchange: two_phase or auto")


class Shard(NamedTuple):
    """What one worker owns of a slice of a bucket."""

    start: int
    stop: int
    lengths: tuple[int, ...]
    """Of the parts of parameters in it, in order."""

    @property
    def shapes(self) -> list[Shape]:
        """Parts of parameters have one dimension."""
        return [(length,) for length in self.lengths]

    @property
    def layout(self) -> Layout:
        """The same for a codec."""
        return [Piece((self.start, number), (length,)) for number, length in enumerate(self.lengths)]

    def of(self, values: Array) -> Array:
        """The bucket's elements that it has."""
        return values[self.start : self.stop]


class Sharded(Gathered):
    """A compressor that codes elements by themselves, or in blocks: shards can be coded one by one, and their means
    again."""

    exchange: ExchangeOption = "auto"
    """`gather`: every worker gathers all payloads. `two_phase`: each averages a shard and codes the mean again, which
    takes 2/N of the bytes and rounds twice. `auto`: two phases where they save more bytes than a round of messages
    costs, and where what the second coding loses is fed back or surely little."""
    slices: Slices = 1
    """Of two phases: a bucket goes in so many slices, one of which is coded while another one is on the links. Each is
    two more operations: it pays where coding takes longer than their messages' latency, and not on far links."""

    @model_validator(mode="after")
    def _slices_are_read(self) -> Self:
        require_slices_read(self.exchange, self.slices)
        return self

    def mean_bytes(self, shapes: Sequence[Shape]) -> int:
        """The length of a shard's mean, of parts of gradients of these shapes."""
        return self.encoded_bytes(shapes)

    def mean_contraction(self, num_elements: int) -> float | None:
        """As :meth:`Compressor.contraction`, of the coding of a mean."""
        return self.contraction(num_elements)

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:
        """The one requested, or the better one."""
        num_elements = count(shapes)
        if num_workers == 1 or not num_elements:
            return "gather"
        if self.exchange != "auto":
            return self.exchange
        kept = self.mean_contraction(shard_elements(num_elements, num_workers))
        if not self.error_feedback and (kept or 0.0) < LEAST_KEPT:
            return "gather"
        two_phase_bytes = sum(exchange.num_elements for exchange in self._two_phases(shapes, num_workers))
        return cheaper(self.encoded_bytes(shapes), two_phase_bytes, num_workers=num_workers)

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """One all_gather; or an all_to_all of shards and an all_gather of their means, of each slice."""
        if self.pattern(shapes, num_workers) == "gather":
            return super().exchanges(shapes, num_workers)
        return self._two_phases(shapes, num_workers)

    def _two_phases(self, shapes: Sequence[Shape], num_workers: int) -> list[Exchange]:
        lengths = [self.row_bytes(shards) for shards in cut(tuple(map(prod, shapes)), num_workers, self.slices)]
        operations: tuple[Operation, Operation] = ("all_to_all", "all_gather")
        return [
            Exchange(operations[phase], num_workers * lengths[number][phase], 1)
            for number, phase in turns(len(lengths))
        ]

    def row_bytes(self, shards: Sequence[Shard]) -> tuple[int, int]:
        """Of the longest payload in each phase: all are filled up to it."""
        return (
            max(self.encoded_bytes(shard.shapes) for shard in shards),
            max(self.mean_bytes(shard.shapes) for shard in shards),
        )

    def lost(self, num_elements: int, num_workers: int) -> float | None:
        """As :class:`Compressor` has it, of both codings."""
        once = super().lost(num_elements, num_workers)
        if once is None or self.pattern([(num_elements,)], num_workers) == "gather":
            return once
        shard = shard_elements(num_elements, num_workers)
        kept = self.mean_contraction(shard)
        again = None if kept is None else sqrt(1 - kept)
        first = super().lost(shard, num_workers)
        return None if again is None or first is None else first + again * (1 + first)


def cheaper(payload_bytes: int, two_phase_bytes: int, *, num_workers: int) -> Pattern:
    """The pattern that takes less time on links of the rate and the latency behind ROUND_BYTES, by what each carries.

    `payload_bytes` is a worker's whole payload, which goes to all others; `two_phase_bytes` are those of the buffers
    that are exchanged in two phases, of which all but a worker's own parts pass its link. No link is looked at: every
    worker must come to the same answer, in a process group too, where nobody knows them; and a wrong answer costs no
    more than a round of messages.
    """
    gathered_bytes = (num_workers - 1) * payload_bytes
    scattered_bytes = two_phase_bytes * (num_workers - 1) // num_workers
    return "two_phase" if scattered_bytes + ROUND_BYTES < gathered_bytes else "gather"


@lru_cache(maxsize=4096)
def cut(lengths: tuple[int, ...], num_workers: int, num_slices: int) -> tuple[tuple[Shard, ...], ...]:
    """The slices of a bucket of parameters of so many elements, fewer where it is short, and in each the shard of every
    worker."""
    ends = list(accumulate(lengths))
    num_elements = ends[-1]
    step = shard_elements(-(-num_elements // num_slices), num_workers) * num_workers
    slices = []
    for start in range(0, num_elements, step):
        stop = min(start + step, num_elements)
        shard = shard_elements(stop - start, num_workers)
        borders = [min(start + rank * shard, stop) for rank in range(num_workers + 1)]
        slices.append(tuple(Shard(*border, _between(*border, ends)) for border in pairwise(borders)))
    return tuple(slices)


def _between(start: int, stop: int, ends: Sequence[int]) -> tuple[int, ...]:
    """Lengths of the parts of parameters, which end at those places, from start to stop."""
    found = []
    for end in islice(ends, bisect_right(ends, start), None):
        if start == stop:
            break
        found.append(min(end, stop) - start)
        start = min(end, stop)
    return tuple(length for length in found if length)


def shard_elements(num_elements: int, num_workers: int) -> int:
    """Of every worker's shard of so many; the last ones may be shorter, or empty."""
    return -(-num_elements // (num_workers * _GRAIN)) * _GRAIN


class ShardedCodec(GatheredCodec):
    """Exchanges in either way."""

    options: Sharded  # type: ignore[misc]

    def __init__(self, options: Compressor, place: Place) -> None:
        super().__init__(options, place)
        self.owed: Final = Memory()
        """What the second coding of this worker's shards left out of their means. It is fed back into the next."""
        self.scratch: Final = Scratch()

    def coded(self, values: Array, layout: Layout) -> Array:  # noqa: ARG002
        """What is coded for these values, (n,): they themselves, unless the codec makes something else of a bucket."""
        return values

    def encode_mean_into(self, payload: Bytes, mean: Array, layout: Layout) -> None:
        """The payload of a shard's mean, finished: of `weight` times its sum. The values stay as they are."""
        self.encode_into(payload, mean, layout)

    def add_decoded_mean(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        """Add `weight` times what such a payload says to the total, which is then finished again: it may be without a
        size that `finish` gives it."""
        self.add_decoded(payload, total, weight, layout)

    def put_decoded_mean(self, payload: Bytes, out: Array, weight: float, layout: Layout) -> None:
        """Put `weight` times what such a payload says in place of what is there."""
        out.fill(0.0)
        self.add_decoded_mean(payload, out, weight, layout)

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        """One round; or two of every slice, as :func:`turns` has them. Beside each request goes what the next one needs
        and the decoding of what has come back."""
        num_workers = self.place.num_workers
        values = self.coded(values, layout)
        shapes = [piece.shape for piece in layout]
        two_phase = self.options.pattern(shapes, num_workers) == "two_phase"
        slices = cut(tuple(map(prod, shapes)), num_workers, self.options.slices) if two_phase else ()
        owed = self._owed(values, layout, slices, weight) if self.options.error_feedback else None
        if not two_phase:
            yield from super().exchange(values, out, layout, weight)
            return
        parts = [_Slice(self, number, shards, weight, values, out, owed) for number, shards in enumerate(slices)]
        parts[0].encode()
        decoding: list[Callable[[], None]] = []
        for (number, phase), following in zip_longest(order := turns(len(parts)), order[1:]):
            beside, decoding = decoding, []
            depends = following is not None and following[0] == number
            if following is not None and not depends:
                beside.append(parts[following[0]].steps[following[1]])
            request = parts[number].request(phase)
            parts[number].answers[phase] = yield Meanwhile(request, partial(_each, beside)) if beside else request
            if depends:
                parts[number].encode_mean()
            if phase == 1:
                decoding.append(parts[number].decode)
        _each(decoding)

    def _owed(self, values: Array, layout: Layout, slices: Sequence[Sequence[Shard]], weight: float) -> Array:
        """What this worker owes, (n,): nothing but of its shards. What it owes of others', for buckets are formed anew,
        becomes part of what it sends, over `weight`: as many times as much as there are workers for a mean."""
        owed = self.owed.flat(layout)
        own = [(shards[self.place.rank].start, shards[self.place.rank].stop) for shards in slices]
        edges = [0, *chain.from_iterable(own), len(owed)]
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if owed[start:stop].any():
                values[start:stop] += owed[start:stop] * np.float32(1 / weight)
                owed[start:stop] = 0
        return owed


class _Slice:
    """A part of a bucket on its way through both phases."""

    def __init__(
        self,
        codec: ShardedCodec,
        number: int,
        shards: Sequence[Shard],
        weight: float,
        values: Array,
        out: Array,
        owed: Array | None,
    ) -> None:
        self._codec = codec
        self._options: Final = codec.options
        self._shards = [shard for shard in shards if shard.lengths]
        """The last workers of a small bucket have none."""
        self._weight = weight
        self._own = shards[codec.place.rank]
        self._row_bytes = codec.options.row_bytes(shards)
        self._values, self._out, self._owed = values, out, owed
        rows = codec.scratch.bytes(("shards", number), len(shards) * self._row_bytes[0])
        self._payloads = rows.reshape(len(shards), self._row_bytes[0])
        self._mean = codec.scratch.bytes(("mean", number), 4 * (self._own.stop - self._own.start)).view(np.float32)
        self._mean_payload = codec.scratch.bytes(("coded", number), self._row_bytes[1])
        self.answers: list[Any] = [None, None]
        self.steps: Final = (self.encode, self.encode_mean)
        """What comes before the request of each phase."""

    def request(self, phase: int) -> Request:
        """Of that phase, once its step is done."""
        return AllToAll(self._payloads) if phase == 0 else AllGather(self._mean_payload, varying=False)

    def encode(self) -> None:
        """Every shard. With error feedback the values become what is not sent."""
        self._payloads[len(self._shards) :] = 0
        for row, shard in zip(self._payloads, self._shards, strict=False):
            values = shard.of(self._values)
            payload = filled_up(row, self._options.encoded_bytes(shard.shapes))
            self._codec.encode_into(payload, values, shard.layout)
            if self._options.error_feedback:
                self._codec.add_decoded(payload, values, -self._codec.damping(len(values)), shard.layout)

    def encode_mean(self) -> None:
        """Of this worker's shard, added in the order of the ranks. With error feedback what it leaves out is kept."""
        codec, own, mean = self._codec, self._own, self._mean
        if not own.lengths:
            self._mean_payload.fill(0)
            return
        damping, length = codec.damping(len(mean)), self._options.encoded_bytes(own.shapes)
        for number, payload in enumerate(self.answers[0]):
            decode = codec.add_decoded if number else codec.put_decoded
            decode(payload[:length], mean, damping * self._weight, own.layout)
        codec.finish(mean, self._weight)
        if self._owed is not None:
            mean += own.of(self._owed)
        payload = filled_up(self._mean_payload, self._options.mean_bytes(own.shapes))
        codec.encode_mean_into(payload, mean, own.layout)
        if self._owed is not None:
            codec.add_decoded_mean(payload, mean, -damping, own.layout)
            forget_infinite(mean)
            own.of(self._owed)[:] = mean

    def decode(self) -> None:
        """The means of all shards."""
        for shard, payload in zip(self._shards, self.answers[1], strict=False):
            out = shard.of(self._out)
            meant = payload[: self._options.mean_bytes(shard.shapes)]
            self._codec.put_decoded_mean(meant, out, self._codec.damping(len(out)), shard.layout)
            self._codec.finish(out, self._weight)


def filled_up(row: Bytes, num_bytes: int) -> Bytes:
    """The first bytes of a row, and zeros in the rest: nothing of an earlier exchange goes out again."""
    row[num_bytes:] = 0
    return row[:num_bytes]


def turns(num_slices: int) -> list[tuple[int, int]]:
    """(slice, phase) of each request, in order: the second phase of a slice comes one slice late, so that its mean can
    be coded meanwhile."""
    order = [(0, 0)]
    for number in range(1, num_slices):
        order += [(number, 0), (number - 1, 1)]
    return [*order, (num_slices - 1, 1)]


def _each(work: Sequence[Callable[[], None]]) -> None:
    for step in work:
        step()
