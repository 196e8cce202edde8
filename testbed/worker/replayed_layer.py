"""Layers that compute nothing: their gradients are there when autograd asks, and a pacer holds them back until they are
due."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch
from torch import nn

Shape = tuple[int, ...]

_NUM_DRAWN: Final = 2**20 + 7
"""Of which gradients are stretches. No power of two, so that neighbouring tensors
of the usual sizes begin in different places."""
_DEVIATION: Final = 1e-3


class Gradients:
    """Normally distributed numbers, drawn once from a seed and given out in turn without being copied, so that each
    iteration's gradients are others and none of them costs a worker any time.

    They repeat; what is drawn is written as often as the largest tensor needs it.
    """

    def __init__(self, seed: int, *, largest: int) -> None:
        """Values for tensors of up to `largest` elements."""
        generator = torch.Generator().manual_seed(seed)
        drawn = _DEVIATION * torch.randn(_NUM_DRAWN, generator=generator)
        self._repeated = torch.empty(_NUM_DRAWN + largest)
        for part in torch.split(self._repeated, _NUM_DRAWN):
            part.copy_(drawn[: len(part)])
        self._next = 0

    def take(self, shape: Shape) -> torch.Tensor:
        """The next ones; not to be written to."""
        start, count = self._next, prod(shape)
        self._next = (start + count) % _NUM_DRAWN
        return self._repeated[start : start + count].view(shape)


class ReplayedLayer(nn.Module):
    """Passes its input on, in a graph in which its parameters take part, so that autograd asks for their gradients."""

    def __init__(self, shapes: Sequence[Shape], gradients: Gradients, *, with_values: bool) -> None:
        """Parameters without values of their own are one zero that is seen as many; nobody may write to them."""
        super().__init__()
        self.tensors = nn.ParameterList(
            torch.zeros(shape) if with_values else torch.zeros(1).expand(shape) for shape in shapes
        )
        self._shapes = tuple(shapes)
        self._gradients = gradients

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """At once."""
        output: torch.Tensor = _Replayed.apply(values, self._gradients, self._shapes, *self.tensors)  # type: ignore[no-untyped-call]
        return output


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: torch.Tensor,
        gradients: Gradients,
        shapes: Sequence[Shape],
        *tensors: torch.Tensor,  # noqa: ARG004 (autograd looks at them)
    ) -> torch.Tensor:
        context.gradients, context.shapes = gradients, shapes
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, None, None, *(context.gradients.take(shape) for shape in context.shapes)
