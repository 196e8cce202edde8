"""A layer that takes time and no core."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class WaitingLayer(nn.Module):
    """Passes its input (n, features) on, a little changed by its parameters, so that autograd calls it."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], *, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self._forward_s = forward_s
        self._backward_s = backward_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """After `forward_s`."""
        output: torch.Tensor = _Waiting.apply(values, self._forward_s, self._backward_s, *self.tensors)  # type: ignore[no-untyped-call]
        return output


class _Waiting(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, values: torch.Tensor, forward_s: float, backward_s: float, *tensors: torch.Tensor
    ) -> torch.Tensor:
        time.sleep(forward_s)
        context.shapes, context.backward_s = [tensor.shape for tensor in tensors], backward_s
        return values + tensors[0].view(-1)[0]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        time.sleep(context.backward_s)
        return gradient, None, None, *(torch.full(shape, 1e-3) for shape in context.shapes)
