"""Real training: a model, a data set, stochastic gradient descent."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.workloads.training import Training
from testbed.worker.datasets import DATASETS, batches
from testbed.worker.task import Batch, Task
from testbed.worker.trainer import Trainer


def work(options: Training, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    """Train. Raises what torch raises when a peer is lost, and ArithmeticError when a gradient is wrong."""
    Trainer(options, TrainingTask(options, configuration), configuration, control).run()


class TrainingTask(Task):
    """The task of a `training` workload: real images, a real model, SGD."""

    broadcasts = True

    def __init__(self, options: Training, configuration: WorkerConfiguration) -> None:
        self._options = options
        self._configuration = configuration
        self._dataset = DATASETS[options.dataset]()
        self.num_samples = options.batch_size

    def build(self) -> nn.Module:
        """The model; its weights are drawn from torch's global generator."""
        return self._options.build()

    def copy(self, model: nn.Module) -> nn.Module:
        """A copy of the model with the same weights."""
        return copy.deepcopy(model)

    def batches(self) -> Iterator[Batch]:
        """This worker's part of each batch."""
        images, labels = torch.from_numpy(self._dataset.images), torch.from_numpy(self._dataset.labels)
        for numbers in batches(
            num_images=len(labels),
            batch_size=self._options.batch_size,
            rank=self._configuration.rank,
            num_workers=self._configuration.num_workers,
            seed=self._configuration.seed,
        ):
            chosen = torch.from_numpy(numbers)
            yield Batch(images[chosen], labels[chosen])

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(output, batch.targets)

    def loss_value(self, loss: torch.Tensor) -> float:
        """The loss as a number."""
        return loss.item()

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Stochastic gradient descent with momentum."""
        return torch.optim.SGD(parameters, lr=self._options.learning_rate, momentum=self._options.momentum)

    def results(self, model: nn.Module) -> Sequence[torch.Tensor]:
        """The parameters."""
        return [parameter.detach() for parameter in model.parameters()]
