"""A layer that takes time and no core."""

import time
from typing import Any

import torch
from torch import nn


class WaitingLayer(nn.Module):
    """Passes its input (n, features) on, a little changed by its parameters, so that autograd calls it."""

    def __init__(self, shape: tuple[int, ...], *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self._forward_s = forward_s
        self._backward_s = backward_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """After `forward_s`."""
        output: torch.Tensor = _Waiting.apply(values, self.weight, self._forward_s, self._backward_s)  # type: ignore[no-untyped-call]
        return output


class _Waiting(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, values: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float
    ) -> torch.Tensor:
        time.sleep(forward_s)
        context.shape, context.backward_s = weight.shape, backward_s
        return values + weight[0, 0]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        time.sleep(context.backward_s)
        return gradient, torch.full(context.shape, 1e-3), None, None
