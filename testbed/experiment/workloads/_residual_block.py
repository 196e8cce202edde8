"""The building block of the residual networks in `experiment/workloads/_models.py`; apart because it needs torch to be
defined."""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """x + convolution(silu(convolution(x))), the identity at first."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, kernel, padding=kernel // 2)
        self.second = nn.Conv2d(width, width, kernel, padding=kernel // 2)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="relu")
        for tensor in (self.first.bias, self.second.weight, self.second.bias):
            assert tensor is not None
            nn.init.zeros_(tensor)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, width, side, side) to the same shape."""
        change: torch.Tensor = self.second(torch.nn.functional.silu(self.first(images)))
        return images + change
