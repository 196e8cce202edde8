"""The exchange in two phases: who decides on it, its bytes, its error, and that nothing is lost between owners."""

from collections.abc import Callable
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.lockstep import Workers
from tests.threads import run_communicators
from transports.compression import _sharded
from transports.compression._sharded import (
    ROUND_BYTES,
    Sharded,
    cheaper,
    cut,
    turns,
)
from transports.compression.base import COMPRESSORS, AllToAll, Piece
from transports.execution.communicator import Communicator

FLOAT_BYTES = 4


def sharded(kind: str, **options: object) -> Sharded:
    compressor = COMPRESSORS.parse({"kind": kind, **options})
    assert isinstance(compressor, Sharded)
    return compressor


@pytest.mark.parametrize("kind", ["int8", "onebit_adam"])
def test_slices_of_an_exchange_that_has_none_are_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="slices: `gather` sends whole payloads"):
        COMPRESSORS.parse({"kind": kind, "exchange": "gather", "slices": 2})
    whole = COMPRESSORS.parse({"kind": kind, "exchange": "gather"})
    assert COMPRESSORS.parse(COMPRESSORS.dump(whole)) == whole


def gradients(num_workers: int, num_elements: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(num_elements, generator=generator) for _ in range(num_workers)]


def carried_bytes(compressor: Sharded, num_elements: int, num_workers: int) -> float:
    """By each link in each direction: every exchange leaves out a worker's own part."""
    exchanges = compressor.exchanges([(num_elements,)], num_workers)
    return sum(exchange.num_elements for exchange in exchanges) * (num_workers - 1) / num_workers


def float_ring_bytes(num_elements: int, num_workers: int) -> float:
    return FLOAT_BYTES * num_elements * 2 * (num_workers - 1) / num_workers


@pytest.mark.parametrize("num_workers", [8, 16])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bits_take_a_quarter_of_a_float_ring_s_bytes_where_gathered_they_take_more_than_all(
    kind: str, num_workers: int
) -> None:
    num_elements = 1_000_000
    whole = float_ring_bytes(num_elements, num_workers)
    assert sharded(kind).pattern([(num_elements,)], num_workers) == "two_phase"
    assert carried_bytes(sharded(kind), num_elements, num_workers) < 0.26 * whole
    assert carried_bytes(sharded(kind, exchange="gather"), num_elements, num_workers) > 0.99 * whole


@pytest.mark.parametrize("num_workers", [2, 4, 8, 64])
def test_one_bit_stays_above_25_times_fewer_bytes_among_any_number(num_workers: int) -> None:
    """CNTK's stripes; gathered they are 28, 14 and 7 times fewer among 2, 4 and 8."""
    num_elements = 1_000_000
    assert float_ring_bytes(num_elements, num_workers) > 25 * carried_bytes(
        sharded("onebit"), num_elements, num_workers
    )


@given(
    payload_bytes=st.integers(1, 10**9),
    two_phase_bytes=st.integers(1, 10**9),
    num_workers=st.integers(2, 100),
)
def test_the_cheaper_pattern_is_no_dearer_than_the_other_by_more_than_a_round(
    payload_bytes: int, two_phase_bytes: int, num_workers: int
) -> None:
    gathered = (num_workers - 1) * payload_bytes
    two_phase = two_phase_bytes * (num_workers - 1) / num_workers
    if cheaper(payload_bytes, two_phase_bytes, num_workers=num_workers) == "gather":
        assert gathered <= two_phase + ROUND_BYTES + 1
    else:
        assert two_phase + ROUND_BYTES <= gathered + 1


@pytest.mark.parametrize(
    ("compressor", "num_elements", "num_workers", "pattern"),
    [
        (sharded("int8"), 10**6, 1, "gather"),
        (sharded("int8"), 10**6, 2, "gather"),  # as many bytes
        (sharded("int8"), 10**6, 3, "two_phase"),
        (sharded("int8"), 1000, 8, "gather"),  # a round of messages costs more
        (sharded("int8", exchange="gather"), 10**6, 8, "gather"),
        (sharded("int8", exchange="two_phase"), 1000, 2, "two_phase"),
        (sharded("int8", exchange="two_phase"), 1000, 1, "gather"),
        (sharded("qsgd", bits=4), 10**6, 8, "gather"),  # nothing bounds what a second rounding adds
        (sharded("qsgd", bits=4, error_feedback=True), 10**6, 8, "two_phase"),
        (sharded("qsgd", bits=8), 10**6, 8, "two_phase"),
        (sharded("signsgd"), 10**6, 8, "two_phase"),  # votes are encoded exactly
        (sharded("signsgd", scaled=True), 10**6, 8, "gather"),
        (sharded("signsgd", scaled=True, error_feedback=True), 10**6, 8, "two_phase"),
        (sharded("onebit"), 10**6, 8, "two_phase"),
        (sharded("onebit", error_feedback=False), 10**6, 8, "gather"),
    ],
    ids=str,
)
def test_auto_takes_two_phases_where_they_pay_and_do_no_harm(
    compressor: Sharded, num_elements: int, num_workers: int, pattern: str
) -> None:
    assert compressor.pattern([(num_elements,)], num_workers) == pattern


@given(
    lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=20).filter(any),
    num_workers=st.integers(2, 20),
    num_slices=st.integers(1, 8),
)
def test_slices_and_shards_cover_a_bucket_once_and_keep_parameters_apart(
    lengths: list[int], num_workers: int, num_slices: int
) -> None:
    slices = cut(tuple(lengths), num_workers, num_slices)
    assert len(slices) <= num_slices
    shards = [shard for slice_ in slices for shard in slice_]
    assert all(len(slice_) == num_workers for slice_ in slices)
    assert shards[0].start == 0
    assert shards[-1].stop == sum(lengths)
    assert all(first.stop == second.start for first, second in pairwise(shards))
    assert all(sum(shard.lengths) == shard.stop - shard.start for shard in shards)
    borders = {0, *accumulate(lengths)}
    inner = {shard.start + end for shard in shards for end in accumulate(shard.lengths)} | {0}
    assert borders <= inner <= borders | {shard.stop for shard in shards}


@pytest.mark.parametrize("num_slices", [1, 2, 3, 4])
def test_a_mean_is_coded_one_turn_before_it_is_gathered(num_slices: int) -> None:
    order = turns(num_slices)
    assert sorted(order) == [(number, phase) for number in range(num_slices) for phase in range(2)]
    for number in range(num_slices):
        distance = order.index((number, 1)) - order.index((number, 0))
        assert distance >= 2 or num_slices == 1


@pytest.mark.parametrize("num_workers", [2, 3, 8])
@pytest.mark.parametrize(
    "compressor", [sharded("int8", exchange="two_phase"), sharded("fp8", exchange="two_phase")], ids=str
)
@given(scale=st.sampled_from([1e-20, 1.0, 1e20]), num_elements=st.integers(1, 3000), seed=st.integers(0, 99))
def test_two_roundings_err_by_no_more_than_is_said(
    compressor: Sharded, num_workers: int, scale: float, num_elements: int, seed: int
) -> None:
    values = [scale * each for each in gradients(num_workers, num_elements, seed)]
    results = Workers(compressor, num_workers).mean(values)
    assert all(torch.equal(result, results[0]) for result in results)
    exact = torch.stack(values).double().mean(0)
    lost = compressor.lost(num_elements, num_workers)
    assert lost is not None
    norms = sum(float(each.double().norm()) for each in values) / num_workers
    assert float((results[0].double() - exact).norm()) <= 1.001 * lost * norms


def test_the_bound_of_two_roundings_is_above_that_of_one() -> None:
    once, twice = (sharded("int8", exchange=pattern).lost(10**6, 8) for pattern in ("gather", "two_phase"))
    assert once is not None
    assert twice is not None
    assert twice == pytest.approx(2 * once + once**2)
    assert sharded("onebit").lost(10**6, 8) is None


@pytest.mark.parametrize("compressor", [sharded("natural"), sharded("qsgd", bits=4)], ids=str)
def test_what_is_right_on_average_stays_so(compressor: Sharded) -> None:
    num_repetitions = 500
    workers = Workers(compressor.model_copy(update={"exchange": "two_phase"}), 3)
    values = gradients(3, 40)
    found = torch.stack([workers.mean(values)[0].double() for _ in range(num_repetitions)])
    exact = torch.stack(values).double().mean(0)
    assert ((found.mean(0) - exact).abs() <= 5 * found.std(0) / num_repetitions**0.5 + 1e-6).all()


@pytest.mark.parametrize("num_workers", [2, 3, 4, 7])
def test_a_vote_is_the_same_in_both_patterns(num_workers: int) -> None:
    values = gradients(num_workers, 1003)
    gathered, in_phases = (
        Workers({"kind": "signsgd", "exchange": pattern}, num_workers).mean(values)[0]
        for pattern in ("gather", "two_phase")
    )
    assert torch.equal(gathered, in_phases)


def reference(
    code: Callable[[np.ndarray], np.ndarray], gradients: np.ndarray, worker: np.ndarray, server: np.ndarray
) -> np.ndarray:
    """DeepSpeed's compressed_allreduce (deepspeed/runtime/comm/nccl.py): gradients and worker's errors are
    (N, N, shard), server's errors (N, shard); returns what all get, and updates both errors."""
    num_workers = len(gradients)
    compensated = gradients + worker
    sent = np.stack([[code(shard) for shard in own] for own in compensated])
    worker[:] = compensated - sent
    compensated_mean = sent.sum(axis=0) / num_workers + server
    decoded = np.stack([code(shard) for shard in compensated_mean])
    server[:] = compensated_mean - decoded
    return decoded.ravel()


def test_errors_on_both_sides_are_fed_back_as_in_the_authors_algorithm() -> None:
    """With the scaled sign as the code, whose scale is the mean absolute value."""
    num_workers, shard = 4, 64
    workers = Workers({"kind": "signsgd", "scaled": True, "error_feedback": True, "exchange": "two_phase"}, num_workers)
    worker, server = np.zeros((num_workers, num_workers, shard)), np.zeros((num_workers, shard))
    for seed in range(20):
        values = gradients(num_workers, num_workers * shard, seed)
        expected = reference(
            lambda part: np.where(part < 0, -1, 1) * np.abs(part).mean(),
            torch.stack(values).numpy().astype(np.float64).reshape(num_workers, num_workers, shard),
            worker,
            server,
        )
        found = workers.mean(values, [Piece(0, (num_workers * shard,))])[0]
        assert np.allclose(found.numpy(), expected, atol=1e-4)


def test_what_an_owner_owes_reaches_the_sum_when_buckets_are_formed_anew() -> None:
    """Also where a smaller bucket is gathered again, and shards have other owners."""
    workers = Workers({"kind": "onebit", "exchange": "two_phase"}, 3)
    lengths = [100, 101, 102]
    missing = [torch.zeros(length, dtype=torch.float64) for length in lengths]
    for round_ in range(12):
        order = [[0, 1, 2], [2, 1, 0], [0, 1, 2], [1, 0, 2]][round_ % 4]
        values = gradients(3, sum(lengths), round_)
        (result, *_) = workers.mean(values, [Piece(number, (lengths[number],)) for number in order])
        difference = torch.stack(values).double().mean(0) - result.double()
        for number, part in zip(order, difference.split([lengths[number] for number in order]), strict=True):
            missing[number] += part
    kept = workers.errors([Piece(number, (length,)) for number, length in enumerate(lengths)])
    assert torch.allclose(torch.cat(missing), torch.stack(kept).double().mean(0), atol=1e-4)


@pytest.mark.parametrize("channel", ["memory", "tcp", "udp", "grpc"])
def test_a_bucket_goes_in_slices_and_ends_the_same_everywhere(channel: str) -> None:
    num_workers, num_elements = 3, 4567
    values = gradients(num_workers, num_elements)
    compressor = sharded("int8", exchange="two_phase", slices=4)
    assert len(compressor.exchanges([(num_elements,)], num_workers)) == 8

    def reduce(communicator: Communicator) -> torch.Tensor:
        tensor = values[communicator.rank].clone()
        communicator.all_reduce(tensor, "avg").wait(20)
        return tensor

    expected = Workers(compressor, num_workers).mean(values)[0]
    for found in run_communicators(reduce, num_workers, channel=channel, compression=compressor):
        assert torch.equal(found, expected)


def test_a_vote_that_is_no_number_is_reported_as_such() -> None:
    codec = Workers("signsgd", 1).members[0]._codec
    assert isinstance(codec, _sharded.ShardedCodec)
    votes, layout = np.array([1, 0, -1, np.nan, 1], np.float32), [Piece(0, (5,))]
    decoded = np.zeros(5, np.float32)
    payload = np.empty(2, np.uint8)
    codec.encode_mean_into(payload, votes, layout)
    codec.add_decoded_mean(payload, decoded, 1.0, layout)
    assert np.array_equal(decoded, votes, equal_nan=True)


def test_nothing_of_an_earlier_exchange_goes_out_again() -> None:
    """Memory is used again, for buckets of any size: what fills payloads up stays zero."""
    fresh, used = (Workers({"kind": "int8", "exchange": "two_phase", "slices": 2}, 3) for _ in range(2))
    used.mean([torch.full((5000,), -1.0)] * 3)
    values, layout = gradients(3, 403), [Piece(number, (length,)) for number, length in enumerate([1, 1, 1, 400])]
    expected = fresh.mean(values, layout)
    assert torch.equal(used.mean(values, layout)[0], expected[0])
    for first, second in zip(fresh.requests, used.requests, strict=True):
        sent = [request.payloads if isinstance(request, AllToAll) else request.payload for request in (first, second)]
        assert np.array_equal(sent[0], sent[1])


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize(
    "compressor",
    [
        sharded("int8", exchange="two_phase"),
        sharded("natural", exchange="two_phase", slices=2),
        sharded("signsgd", exchange="two_phase"),
        sharded("onebit", exchange="two_phase"),
    ],
    ids=str,
)
def test_a_sum_is_as_many_times_the_mean_as_there_are_workers(compressor: Sharded, num_workers: int) -> None:
    """Bit for bit, as that many is a power of two; with error feedback also where owners change."""
    averaging, summing = (Workers(compressor, num_workers) for _ in range(2))
    layout = [Piece(number, (length,)) for number, length in enumerate([100, 301, 102])]
    for round_ in range(6):
        values = gradients(num_workers, 503, round_)
        turned = layout[:: 1 if round_ % 3 else -1]
        means, sums = averaging.mean(values, turned), summing._reduced(values, turned, "sum")
        assert all(torch.equal(each, num_workers * means[0]) for each in sums)


@pytest.mark.parametrize("num_workers", [3, 5, 6])
def test_the_sum_of_a_vote_is_as_many_times_the_vote(num_workers: int) -> None:
    values = gradients(num_workers, 1003)
    for exchange in ("gather", "two_phase"):
        workers = Workers({"kind": "signsgd", "exchange": exchange}, num_workers)
        votes = torch.stack([each.sign() for each in values]).sum(0).sign()
        assert torch.equal(workers.sum(values)[0], num_workers * votes)


@pytest.mark.parametrize("feeding", [False, True])
def test_the_largest_scale_has_room_in_both_codings(*, feeding: bool) -> None:
    compressor = sharded("signsgd", scaled=True, error_feedback=feeding, exchange="two_phase")
    workers = Workers(compressor, 2)
    values = torch.full((100,), 3e38)
    for result in workers.mean([values, values]):
        assert torch.allclose(result, values)
    kept = workers.errors([Piece("parameter", (100,))])
    assert not feeding or all(float(each.abs().max()) <= 1e-6 * 3e38 for each in kept)
