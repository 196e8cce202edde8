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

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from math import sqrt
from typing import Any, Final, Literal

import numpy as np

from transports.collectives.base import Operation
from transports.compression._memory import Memory, forget_infinite
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

ROUND_BYTES: Final = 12_500
"""What the second round of messages is reckoned to cost: what a link of 1 Gbit/s carries in 100 us, the rate and the
latency that `collective: auto` takes where nobody has told it any."""
LEAST_KEPT: Final = 0.75
"""Of the square: how much of it a second coding must keep, at worst, to be chosen where no error is fed back."""
MOST_SLICES: Final = 4
SLICE_ELEMENTS: Final = 2**18
"""At least: a slice is two more rounds of messages, and should be worth them."""
_GRAIN: Final = 8
"""Shards are multiples of so many elements, but for the last: signs fill whole bytes."""


class Sharded(Gathered):
    """A compressor that codes elements by themselves, or in blocks: shards can be coded one by one, and their means
    again."""

    exchange: Literal["auto", "gather", "two_phase"] = "auto"
    """`gather`: every worker gathers all payloads. `two_phase`: each averages a shard and codes the mean again, which
    takes 2/N of the bytes and rounds twice. `auto`: two phases where they save more bytes than a round of messages
    costs, and where what the second coding loses is fed back or surely little."""

    def mean_bytes(self, num_elements: int) -> int:
        """The length of a shard's mean."""
        return self.encoded_bytes([(num_elements,)])

    def mean_contraction(self, num_elements: int) -> float | None:
        """As :meth:`Compressor.contraction`, of the coding of a mean."""
        return self.contraction(num_elements)

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:
        """The one asked for, or the better one."""
        num_elements = count(shapes)
        if num_workers == 1 or not num_elements:
            return "gather"
        if self.exchange != "auto":
            return self.exchange
        kept = self.mean_contraction(shard_elements(num_elements, num_workers))
        if not self.error_feedback and (kept or 0.0) < LEAST_KEPT:
            return "gather"
        two_phase_bytes = sum(exchange.num_elements for exchange in self._two_phases(num_elements, num_workers))
        return cheaper(self.encoded_bytes(shapes), two_phase_bytes, num_workers=num_workers)

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """One all_gather; or an all_to_all of shards and an all_gather of their means, of each slice."""
        if self.pattern(shapes, num_workers) == "gather":
            return super().exchanges(shapes, num_workers)
        return self._two_phases(count(shapes), num_workers)

    def _two_phases(self, num_elements: int, num_workers: int) -> list[Exchange]:
        shards = [shard_elements(stop - start, num_workers) for start, stop in slices(num_elements, num_workers)]
        lengths = [(self.encoded_bytes([(shard,)]), self.mean_bytes(shard)) for shard in shards]
        operations: tuple[Operation, Operation] = ("all_to_all", "all_gather")
        return [
            Exchange(operations[phase], num_workers * lengths[number][phase], 1) for number, phase in turns(len(shards))
        ]

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
    that are exchanged in two phases, of which all but a worker's own parts pass its link. Links are not asked: every
    worker must come to the same answer, in a process group too, where nobody knows them; and a wrong answer costs no
    more than a round of messages.
    """
    gathered_bytes = (num_workers - 1) * payload_bytes
    scattered_bytes = two_phase_bytes * (num_workers - 1) // num_workers
    return "two_phase" if scattered_bytes + ROUND_BYTES < gathered_bytes else "gather"


def slices(num_elements: int, num_workers: int) -> list[tuple[int, int]]:
    """Start and stop of what goes through both phases at once. Of a long bucket one slice is coded while another one is
    on the links."""
    wanted = max(1, min(MOST_SLICES, num_elements // SLICE_ELEMENTS))
    step = shard_elements(-(-num_elements // wanted), num_workers) * num_workers
    return [(start, min(start + step, num_elements)) for start in range(0, num_elements, step)]


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

    def encode_mean(self, mean: Array) -> Bytes:
        """The payload of a shard's mean, finished. The values stay as they are."""
        return self.encode(mean, _alone(mean))

    def add_decoded_mean(self, payload: Bytes, total: Array, weight: float) -> None:
        """Add `weight` times what such a payload says to the total."""
        self.add_decoded(payload, total, weight, _alone(total))

    def exchange(self, values: Array, out: Array, layout: Layout) -> Exchanging:
        """One round; or two of every slice, as :func:`turns` has them. Beside each request goes what the next one needs
        and the decoding of what has come back."""
        num_workers = self.place.num_workers
        two_phase = self.options.pattern([piece.shape for piece in layout], num_workers) == "two_phase"
        borders = slices(len(values), num_workers) if two_phase else []
        owed = self._owed(values, layout, borders) if self.options.error_feedback else None
        if not two_phase:
            yield from super().exchange(values, out, layout)
            return
        parts = [
            _Slice(self, values[start:stop], out[start:stop], None if owed is None else owed[start:stop])
            for start, stop in borders
        ]
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

    def _owed(self, values: Array, layout: Layout, borders: Sequence[tuple[int, int]]) -> Array:
        """What this worker owes, (n,): nothing but of its shards. What it owes of others', for buckets are formed anew,
        becomes part of what it sends: as many times as much as there are workers, for that is averaged."""
        owed = self.owed.flat(layout)
        edges = [0]
        for start, stop in borders:
            edges += [start + border for border in _shards(stop - start, self.place.num_workers)[self.place.rank]]
        for start, stop in zip(edges[::2], [*edges[1::2], len(owed)], strict=True):
            if owed[start:stop].any():
                values[start:stop] += owed[start:stop] * np.float32(self.place.num_workers)
                owed[start:stop] = 0
        return owed


class _Slice:
    """A part of a bucket on its way through both phases."""

    def __init__(self, codec: ShardedCodec, values: Array, out: Array, owed: Array | None) -> None:
        self._codec = codec
        self._options: Final = codec.options
        self._values, self._out, self._owed = values, out, owed
        self._shards = _shards(len(values), codec.place.num_workers)
        self._longest = shard_elements(len(values), codec.place.num_workers)
        self._payloads: Bytes
        self._mean_payload: Bytes
        self.answers: list[Any] = [None, None]
        self.steps: Final = (self.encode, self.encode_mean)
        """What comes before the request of each phase."""

    def request(self, phase: int) -> Request:
        """Of that phase, once its step is done."""
        return AllToAll(self._payloads) if phase == 0 else AllGather(self._mean_payload, varying=False)

    def encode(self) -> None:
        """Every shard. With error feedback the values become what is not sent."""
        self._payloads = np.zeros((len(self._shards), self._options.encoded_bytes([(self._longest,)])), np.uint8)
        for row, (start, stop) in zip(self._payloads, self._shards, strict=True):
            if start < stop:
                shard = self._values[start:stop]
                payload = self._codec.encode(shard, _alone(shard))
                row[: len(payload)] = payload
                if self._options.error_feedback:
                    self._codec.add_decoded(payload, shard, -self._codec.damping(len(shard)), _alone(shard))

    def encode_mean(self) -> None:
        """Of this worker's shard, added in the order of the ranks. With error feedback what it leaves out is kept."""
        start, stop = self._shards[self._codec.place.rank]
        self._mean_payload = np.zeros(self._options.mean_bytes(self._longest), np.uint8)
        if start == stop:
            return
        mean = np.zeros(stop - start, np.float32)
        damping, length = self._codec.damping(len(mean)), self._options.encoded_bytes([mean.shape])
        for payload in self.answers[0]:
            self._codec.add_decoded(payload[:length], mean, damping / self._codec.place.num_workers, _alone(mean))
        self._codec.finish(mean)
        if self._owed is not None:
            mean += self._owed[start:stop]
        payload = self._codec.encode_mean(mean)
        self._mean_payload[: len(payload)] = payload
        if self._owed is not None:
            self._codec.add_decoded_mean(payload, mean, -damping)
            forget_infinite(mean)
            self._owed[start:stop] = mean

    def decode(self) -> None:
        """The means of all shards."""
        self._out.fill(0.0)
        for (start, stop), payload in zip(self._shards, self.answers[1], strict=True):
            if start < stop:
                meant = payload[: self._options.mean_bytes(stop - start)]
                self._codec.add_decoded_mean(meant, self._out[start:stop], self._codec.damping(stop - start))


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


def _shards(num_elements: int, num_workers: int) -> list[tuple[int, int]]:
    """Start and stop of each worker's."""
    shard = shard_elements(num_elements, num_workers)
    return list(pairwise(min(rank * shard, num_elements) for rank in range(num_workers + 1)))


def _alone(values: Array) -> Layout:
    """Codecs of shards do not ask which parameter an element is of."""
    return [Piece("shard", (len(values),))]
