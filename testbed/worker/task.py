"""What a training worker computes, apart from how it is timed and synchronised."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn


class Batch(NamedTuple):
    """The inputs and targets of one iteration."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Task(ABC):
    """A model and what it is fed."""

    num_samples: int
    """Of a worker in an iteration."""
    broadcasts: bool
    """Whether the workers' models are made alike before they train."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model."""

    @abstractmethod
    def copy(self, model: nn.Module) -> nn.Module:
        """Another one of the same shape, that may be trained and thrown away."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Without end."""

    @abstractmethod
    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What backward starts from."""

    @abstractmethod
    def loss_value(self, loss: torch.Tensor) -> float:
        """The loss to report; not a number where it means nothing."""

    @abstractmethod
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""

    @abstractmethod
    def results(self, model: nn.Module) -> Sequence[torch.Tensor]:
        """What every worker must have the same of in the end: tensors of one shape for each parameter."""
