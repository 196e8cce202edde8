"""Low-rank factors."""

import torch

from tests.lockstep import Workers
from transports.compression.base import COMPRESSORS, Piece

LAYOUT = [Piece("weight", (20, 5, 6)), Piece("bias", (20,)), Piece("small", (2, 2))]


def _gradient(seed: int, rank: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(20, rank, generator=generator) @ torch.randn(rank, 30, generator=generator)
    return torch.cat([low.flatten(), torch.randn(24, generator=generator)])


def test_a_matrix_of_low_rank_is_exact() -> None:
    (result,) = Workers({"kind": "powersgd", "rank": 2}, 1).mean([_gradient(1)], LAYOUT)
    assert torch.allclose(result, _gradient(1), atol=1e-4)


def test_vectors_and_what_would_not_shrink_travel_as_they_are() -> None:
    workers = Workers({"kind": "powersgd", "rank": 1}, 2)
    values = [_gradient(seed, rank=6) for seed in range(2)]
    (result, _) = workers.mean(values, LAYOUT)
    assert torch.allclose(result[600:], ((values[0] + values[1]) / 2)[600:])
    assert COMPRESSORS.parse({"kind": "powersgd", "rank": 1}).payload_bytes([(20, 5, 6), (20,), (2, 2)], 2) == 4 * (
        20 + 20 + 4 + 30
    )


def test_the_same_gradient_again_is_met_better() -> None:
    """The power method goes on where it was."""
    workers = Workers({"kind": "powersgd", "rank": 2, "error_feedback": False}, 1)
    gradient = _gradient(3, rank=10)
    errors = [float((workers.mean([gradient], LAYOUT)[0] - gradient).norm()) for _ in range(20)]
    assert errors[-1] < 0.99 * errors[0]


def test_a_gradient_of_zeros_does_not_stop_it() -> None:
    workers = Workers({"kind": "powersgd", "rank": 2}, 1)
    workers.mean([torch.zeros(624)], LAYOUT)
    total = sum((workers.mean([_gradient(1)], LAYOUT)[0] for _ in range(10)), torch.zeros(624))
    assert torch.allclose(total, 10 * _gradient(1), atol=1e-2)
