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
