"""Sums in a shorter type."""

import torch

from tests.lockstep import Workers


def test_a_sum_beyond_the_range_is_no_overflow_while_its_mean_is_within() -> None:
    values = [torch.full((3,), 60000.0) for _ in range(4)]
    assert torch.equal(Workers("fp16", 4).mean(values)[0], values[0])


def test_an_overflow_becomes_infinite_and_is_not_fed_back() -> None:
    workers = Workers({"kind": "fp16", "error_feedback": True}, 1)
    assert torch.isinf(workers.mean([torch.tensor([1e6, 1.0])])[0][0])
    assert workers.mean([torch.tensor([1.0, 1.0])])[0].tolist() == [1.0, 1.0]
