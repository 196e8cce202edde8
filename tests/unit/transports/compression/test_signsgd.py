"""Votes."""

import pytest
import torch
from pydantic import ValidationError

from tests.lockstep import Workers
from transports.compression.base import COMPRESSORS


def test_the_majority_wins_and_a_tie_is_zero() -> None:
    votes = [torch.tensor([1.0, -2, 3, 0]), torch.tensor([5.0, -1, -1, 0])]
    assert Workers("signsgd", 2).mean(votes)[0].tolist() == [1, -1, 0, 1]
    third = torch.tensor([-100.0, -1, -1, -1])
    assert Workers("signsgd", 3).mean([*votes, third])[0].tolist() == [1, -1, -1, 1]


def test_scaled_signs_are_the_mean_size() -> None:
    values = torch.tensor([1.0, -2, 3])
    assert Workers({"kind": "signsgd", "scaled": True}, 1).mean([values])[0].tolist() == [2, -2, 2]


def test_a_vote_takes_no_error_feedback() -> None:
    with pytest.raises(ValidationError, match="no contraction"):
        COMPRESSORS.parse({"kind": "signsgd", "error_feedback": True})


@pytest.mark.parametrize("num_elements", [1, 7, 8, 9])
def test_a_vote_with_something_that_is_no_number_is_none(num_elements: int) -> None:
    votes = [torch.ones(num_elements), torch.ones(num_elements)]
    votes[1][-1] = float("inf")
    workers = Workers("signsgd", 2)
    for result in workers.mean(votes):
        assert torch.isnan(result).all()
    assert workers.payload_bytes() == num_elements // 8 + 1
    assert workers.mean([votes[0]] * 2)[0].tolist() == [1.0] * num_elements
