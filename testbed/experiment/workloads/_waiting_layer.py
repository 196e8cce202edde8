"""A layer that takes time and no core."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class WaitingLayer(nn.Module):
    """Passes its input (n, features) on, a little changed by its parameters, so that autograd calls it.

    Its gradients are drawn once from torch's global generator, so that compressors have something to choose from.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self._gradients = [1e-3 * torch.randn(shape) for shape in shapes]
        self._forward_s = forward_s
        self._backward_s = backward_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """After `forward_s`."""
        output: torch.Tensor = _Waiting.apply(values, self._forward_s, self._backward_s, self._gradients, *self.tensors)  # type: ignore[no-untyped-call]
        return output


class _Waiting(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: torch.Tensor,
        forward_s: float,
        backward_s: float,
        gradients: Sequence[torch.Tensor],
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        time.sleep(forward_s)
        context.gradients, context.backward_s = gradients, backward_s
        return values + tensors[0].view(-1)[0]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        time.sleep(context.backward_s)
        return gradient, None, None, None, *(each.clone() for each in context.gradients)
