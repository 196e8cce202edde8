"""bfloat16."""

import torch

from tests.lockstep import Workers


def test_it_is_the_cast() -> None:
    values = torch.tensor([1.0, 1 + 2.0**-9, 3.14159, -1e30])
    assert torch.equal(Workers("bf16", 1).mean([values])[0], values.bfloat16().float())
