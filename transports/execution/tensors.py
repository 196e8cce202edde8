"""A tensor as what travels: contiguous elements, and their bytes."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

Mode = Callable[[], AbstractContextManager[None]]
"""What the results of an operation are written in, on whatever thread that happens."""


def writing_mode() -> Mode:
    """That of the thread that starts an operation, as torch's own backends carry it along: tensors that were made in
    inference mode can be written to in it alone, and no result is part of a graph that gradients go through."""
    return torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor (n,)."""
    return tensor.view(torch.uint8).numpy().data


def flat(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """The tensor's elements as a contiguous (n,), and what puts them back if that had to be a copy."""
    tensor = tensor.detach()
    # Truth values travel, and are compared, as the bytes 0 and 1.
    plain = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
    if plain.is_contiguous() and not plain.is_neg():
        return plain.view(-1), nothing
    values = plain.resolve_neg().contiguous().view(-1)

    def restore() -> None:
        plain.copy_(values.view(plain.shape))

    return values, restore


def nothing() -> None:
    """Nothing has to be put back."""
