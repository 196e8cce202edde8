"""1-bit Adam beside torch's Adam while it starts, and beside DeepSpeed's OnebitAdam after that."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.lockstep import Workers
from transports.compression import onebit_adam
from transports.compression.base import COMPRESSORS, AllReduce, AllToAll, Piece, Place
from transports.compression.onebit_adam import OneBitAdam, Signs, SignsCodec

NUM_WORKERS, SHARD = 4, 64
NUM_ELEMENTS = NUM_WORKERS * SHARD
LAYOUT = [Piece(0, (NUM_ELEMENTS,))]


def gradients(num_workers: int, num_elements: int, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(num_elements, generator=generator)
    return [scale * (common + torch.randn(num_elements, generator=generator)) for _ in range(num_workers)]


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1.0, 1e30])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_while_it_starts_its_steps_are_those_of_torch_s_adam(scale: float, betas: tuple[float, float]) -> None:
    """At scales whose squares a float32 does not hold: torch's is computed in float64."""
    workers = Workers({"kind": "onebit_adam", "start": 10, "momentum": betas[0], "variance_decay": betas[1]}, 2)
    parameter = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=1.0, betas=betas, eps=1e-8)
    for seed in range(10):
        values = gradients(2, 50, seed, scale)
        before = parameter.detach().clone()
        parameter.grad = torch.stack(values).double().mean(0)
        optimizer.step()
        (step, other) = workers.mean(values, [Piece(0, (50,))])
        assert torch.allclose(step.double(), before - parameter.detach(), rtol=1e-4, atol=1e-6 * min(1, scale * 1e8))
        assert torch.equal(step, other)


class DeepSpeeds:
    """OnebitAdam.step of deepspeed/runtime/fp16/onebit/adam.py and compressed_allreduce of
    deepspeed/runtime/comm/nccl.py for one parameter of N workers, in float64, its names kept; with a size of its own
    for what each worker sends to each server, as each server's part has."""

    def __init__(self, freeze_step: int, betas: tuple[float, float], eps: float) -> None:
        self.freeze_step, self.betas, self.eps = freeze_step, betas, eps
        self.exp_avg, self.exp_avg_sq = np.zeros(NUM_ELEMENTS), np.zeros(NUM_ELEMENTS)
        self.worker_error = np.zeros((NUM_WORKERS, NUM_WORKERS, SHARD))
        self.server_error = np.zeros((NUM_WORKERS, SHARD))
        self.step_ = 0

    def update(self, grads: np.ndarray) -> np.ndarray:
        beta1, beta2 = self.betas
        self.step_ += 1
        if self.step_ <= self.freeze_step:
            grad = grads.mean(0)
            self.exp_avg = beta1 * self.exp_avg + (1 - beta1) * grad
            self.exp_avg_sq = beta2 * self.exp_avg_sq + (1 - beta2) * grad * grad
        else:
            self.exp_avg = self.compressed_allreduce(beta1 * self.exp_avg + (1 - beta1) * grads)
            self.exp_avg *= self.exp_avg_sq > 0  # exp_avg_mask, which there a user has to make
        return self.exp_avg / (np.sqrt(self.exp_avg_sq) + self.eps)

    def compressed_allreduce(self, buffers: np.ndarray) -> np.ndarray:
        compensated = buffers.reshape(NUM_WORKERS, NUM_WORKERS, SHARD) + self.worker_error
        sent = self.compress(compensated)
        self.worker_error = compensated - sent
        compensated_server = sent.mean(axis=0) + self.server_error
        decoded = self.compress(compensated_server)
        self.server_error = compensated_server - decoded
        return decoded.ravel()

    @staticmethod
    def compress(buffer: np.ndarray) -> np.ndarray:
        scale = np.linalg.norm(buffer, axis=-1, keepdims=True) / np.sqrt(buffer.shape[-1])
        return scale * np.where(buffer < 0, -1, 1)


@pytest.mark.parametrize("freeze_step", [1, 5])
def test_from_then_on_its_steps_are_those_of_deepspeed(freeze_step: int) -> None:
    workers = Workers(
        {"kind": "onebit_adam", "start": freeze_step, "bias_correction": False, "exchange": "two_phase"}, NUM_WORKERS
    )
    theirs = DeepSpeeds(freeze_step, (0.9, 0.999), 1e-8)
    for seed in range(25):
        values = gradients(NUM_WORKERS, NUM_ELEMENTS, seed)
        for each in values:
            each[7] = 0.0  # never a gradient
        expected = theirs.update(torch.stack(values).double().numpy())
        results = workers.mean(values, LAYOUT)
        assert all(torch.equal(result, results[0]) for result in results)
        assert results[0][7] == 0
        assert np.allclose(results[0].numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).mean())
        compressed = any(isinstance(request, AllToAll) for request in workers.requests)
        assert compressed == (seed >= freeze_step)
        assert any(isinstance(request, AllReduce) for request in workers.requests) != compressed


@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=5).filter(any),
    scale=st.sampled_from([1e-30, 1e-10, 1.0, 1e30]),
    share_of_zeros=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_coding_keeps_the_length_of_each_part_and_leaves_what_is_said(
    lengths: list[int], scale: float, share_of_zeros: float, seed: int
) -> None:
    """|C(x) - x|^2 = 2 (1 - |x|_1 / (sqrt(n) |x|_2)) |x|^2."""
    generator = np.random.default_rng(seed)
    layout = [Piece(number, (length,)) for number, length in enumerate(lengths)]
    drawn = generator.standard_normal(sum(lengths)) * (generator.random(sum(lengths)) >= share_of_zeros) * scale
    values = drawn.astype(np.float32)
    codec = SignsCodec(Signs(), Place(rank=0, num_workers=1, seed=0))
    payload = codec.encode(values, layout)
    assert len(payload) == Signs().encoded_bytes([piece.shape for piece in layout])
    decoded = np.zeros_like(values)
    codec.add_decoded(payload, decoded, 1.0, layout)
    start = 0
    for length in filter(None, lengths):
        part, coded = (each[start : start + length].astype(np.float64) for each in (values, decoded))
        start += length
        norm = np.linalg.norm(part)
        assert np.linalg.norm(coded) == pytest.approx(norm, rel=1e-5)
        left = 2 * norm * (norm - np.abs(part).sum() / math.sqrt(length))
        assert np.square(coded - part).sum() == pytest.approx(left, rel=1e-4, abs=float(1e-5 * norm**2))


@pytest.mark.parametrize("num_large", [1, 3, 40, 256])
def test_what_is_left_out_stays_bounded_though_one_coding_may_leave_more_than_there_was(num_large: int) -> None:
    workers = Workers({"kind": "onebit_adam", "start": 1, "exchange": "two_phase"}, 2)
    norms = []
    for seed in range(400):
        values = [torch.zeros(NUM_ELEMENTS) for _ in range(2)]
        for each, given_ in zip(values, gradients(2, num_large, seed), strict=True):
            each[:num_large] = given_
        workers.mean(values, LAYOUT)
        codec = workers.members[0]._codec
        assert isinstance(codec, onebit_adam._Codec)
        norms.append(float(np.linalg.norm(codec._errors.flat(LAYOUT))))
    assert np.mean(norms[300:]) < 1.3 * np.mean(norms[150:250]) + 1e-9
    assert max(norms[1:]) < 30 * math.sqrt(num_large)


def test_a_gradient_that_is_no_number_shows_even_where_none_was_seen_before() -> None:
    workers = Workers({"kind": "onebit_adam", "start": 1, "exchange": "two_phase"}, 2)
    layout = [Piece("silent", (1,)), Piece("other", (40,))]
    silent = [torch.cat([torch.zeros(1), each]) for each in gradients(2, 40, 0)]
    workers.mean(silent, layout)
    spoiled = [each.clone() for each in silent]
    spoiled[1][0] = float("nan")
    for result in workers.mean(spoiled, layout):
        assert not torch.isfinite(result[0])
    (result, _) = workers.mean(silent, layout)
    assert torch.isfinite(result).all()
    assert result[0] == 0


def test_state_follows_parameters_into_other_buckets() -> None:
    """Reordered after the first exchange, as DistributedDataParallel does it."""
    plain, reordered = (Workers({"kind": "onebit_adam", "start": 2, "exchange": "gather"}, 2) for _ in range(2))
    layout = [Piece("a", (40,)), Piece("b", (24,))]
    for seed in range(6):
        values = gradients(2, 64, seed)
        expected = plain.mean(values, layout)[0]
        if seed == 0:
            found = reordered.mean(values, layout)[0]
        else:
            turned = [torch.cat([each[40:], each[:40]]) for each in values]
            found = reordered.mean(turned, layout[::-1])[0]
            found = torch.cat([found[24:], found[:24]])
        assert torch.allclose(found, expected, rtol=1e-5)


def test_it_has_to_start() -> None:
    with pytest.raises(ValidationError, match="start"):
        COMPRESSORS.parse({"kind": "onebit_adam", "start": 0})
    compressor = COMPRESSORS.parse("onebit_adam")
    assert isinstance(compressor, OneBitAdam)
    assert compressor.settled_after == 2


@pytest.mark.parametrize("num_workers", [2, 8])
def test_a_bit_an_element_and_a_size_for_each_part(num_workers: int) -> None:
    compressor = COMPRESSORS.parse("onebit_adam")
    num_elements = 10**6
    exchanges = compressor.exchanges([(num_elements,)], num_workers)
    assert sum(each.num_elements for each in exchanges) == pytest.approx(
        2 * num_elements / 8 if num_workers > 2 else 2 * (num_elements / 8 + 4), rel=1e-3
    )
