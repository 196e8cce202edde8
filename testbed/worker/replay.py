"""Replayed training: the gradients of a layer table, each when the table says, and no computing."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.iterative import Replayed
from testbed.worker.replayed_layer import Gradients, ReplayedLayer
from testbed.worker.task import Batch, Task
from testbed.worker.trainer import Trainer


def work(options: Replayed, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    """Replay. Raises what torch raises when a peer is lost, and ArithmeticError when a gradient is wrong."""
    Trainer(options, ReplayTask(options, configuration), configuration, control).run()


class ReplayTask(Task):
    """Gradients are drawn from the run's seed and the worker's rank.

    Parameters have values only where workers exchange these. The optimizer's step is replayed too, as time: gradients
    are forgotten, and there is no loss.
    """

    broadcasts = False

    def __init__(self, options: Replayed, configuration: WorkerConfiguration) -> None:
        self._table = options.layer_table()
        self._gradients = Gradients(
            configuration.seed * configuration.num_workers + configuration.rank,
            largest=max(prod(shape) for layer in self._table.layers for shape in layer.tensors),
        )
        self._with_values = not configuration.synchronisation.gradients_in_every_iteration
        self._reduced: dict[torch.Tensor, torch.Tensor] = {}
        self.num_samples = self._table.batch_size or 0

    def build(self) -> nn.Module:
        """A module for each layer that has gradients."""
        return nn.Sequential(
            *(
                ReplayedLayer(layer.tensors, self._gradients, with_values=self._with_values)
                for layer in self._table.layers
                if layer.tensors
            )
        )

    def copy(self, model: nn.Module) -> nn.Module:  # noqa: ARG002 (it has nothing to copy)
        """Another one."""
        return self.build()

    def batches(self) -> Iterator[Batch]:
        """Nothing, again and again. What the iteration before has left is let go, so that nobody holds old buckets."""
        while True:
            self._reduced.clear()
            yield Batch(torch.zeros(1), torch.zeros(0))

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:  # noqa: ARG002 (there are no targets)
        """A loss from which backward starts: the sum of the output."""
        return output.sum()

    def loss_value(self, loss: torch.Tensor) -> float:  # noqa: ARG002 (it means nothing)
        """Not a number: a replay has no loss."""
        return float("nan")

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer that changes nothing."""
        return _Forgetting(parameters, self._reduced)

    def results(self, model: nn.Module) -> Sequence[torch.Tensor]:
        """The last iteration's mean gradients; where workers exchange parameters, these."""
        if self._with_values:
            return [parameter.detach() for parameter in model.parameters()]
        return [self._reduced[parameter] for parameter in model.parameters()]


class _Forgetting(torch.optim.Optimizer):
    """Keeps where the last gradients lie, so that they can be looked at when all is over."""

    def __init__(self, parameters: Iterable[nn.Parameter], reduced: dict[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self._reduced = reduced

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 (of the interface)
        """Nowhere."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._reduced[parameter] = parameter.grad
