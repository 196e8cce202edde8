"""Half precision."""

import torch

from tests.lockstep import Workers


def test_it_is_the_cast() -> None:
    values = torch.tensor([1.0, 1 + 2.0**-11, 3.14159, -(2.0**-20)])
    assert torch.equal(Workers("fp16", 1).mean([values])[0], values.half().float())
