"""The largest elements."""

import torch

from tests.lockstep import Workers


def test_the_largest_are_sent_and_the_rest_the_next_time() -> None:
    workers = Workers({"kind": "top_k", "ratio": 0.25}, 1)
    assert workers.mean([torch.tensor([1.0, -4, 2, 3])])[0].tolist() == [0, -4, 0, 0]
    assert workers.mean([torch.zeros(4)])[0].tolist() == [0, 0, 0, 3]
    assert workers.mean([torch.tensor([1.5, 0, 0, 0])])[0].tolist() == [2.5, 0, 0, 0]
