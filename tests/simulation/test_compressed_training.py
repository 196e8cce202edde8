"""The quickstart's network, narrower, trained for 200 iterations by workers in one process, with every compressor."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from testbed.workloads._datasets import DATASETS, batches
from testbed.workloads._models import ResidualNetwork
from tests.lockstep import Workers
from transports.compression.base import Piece

NUM_WORKERS = 2
BATCH_SIZE = 16
NUM_ITERATIONS = 200
NUM_LAST = 20
"""Iterations at the end over which the loss is averaged."""
NETWORK = ResidualNetwork(width=16, blocks_before_pooling=1, blocks_after_pooling=1, image_side=8, num_classes=10)

NEAR: list[Any] = [
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "natural",
    "thc",
    "threshold",
    "onebit",
    {"kind": "signsgd", "scaled": True, "error_feedback": True},
]
"""Those that end at most 5 % above the uncompressed loss."""
BEHIND: list[Any] = [
    "qsgd",
    "terngrad",
    "top_k",
    {"kind": "random_k", "ratio": 0.1},
    "powersgd",
    {"kind": "dgc", "momentum": 0.5},
]
"""Those whose noise, or delay, still shows: they have come 95 % of the way down."""


def _data(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    digits = DATASETS["digits"]()
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    for numbers in batches(num_images=len(labels), batch_size=BATCH_SIZE, rank=rank, num_workers=NUM_WORKERS, seed=1):
        chosen = torch.from_numpy(numbers)
        yield images[chosen], labels[chosen]


def train(compression: object) -> tuple[float, float]:
    """Mean loss of the first iteration and of the last ones."""
    torch.manual_seed(1)
    model = NETWORK.build()
    parameters = list(model.parameters())
    layout = [Piece(number, tuple(parameter.shape)) for number, parameter in enumerate(parameters)]
    workers = Workers(compression, NUM_WORKERS, seed=1)
    momentum = 0.0 if workers.compressor.own_momentum else 0.5
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=momentum)
    streams = [_data(rank) for rank in range(NUM_WORKERS)]
    losses = []
    for _ in range(NUM_ITERATIONS):
        gradients = []
        loss_sum = 0.0
        for stream in streams:
            images, labels = next(stream)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            gradients.append(torch.cat([each.ravel() for each in torch.autograd.grad(loss, parameters)]))
            loss_sum += loss.item()
        losses.append(loss_sum / NUM_WORKERS)
        (mean, *_) = workers.mean(gradients, layout)
        pieces = mean.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
    return losses[0], float(np.mean(losses[-NUM_LAST:]))


@pytest.fixture(scope="module")
def uncompressed() -> tuple[float, float]:
    return train("none")


@pytest.mark.parametrize("compression", NEAR, ids=str)
def test_it_ends_at_most_five_percent_above_the_uncompressed_loss(
    compression: object, uncompressed: tuple[float, float]
) -> None:
    _, last = train(compression)
    assert last <= 1.05 * uncompressed[1]


@pytest.mark.parametrize("compression", BEHIND, ids=str)
def test_it_has_come_almost_all_the_way_down(compression: Any, uncompressed: tuple[float, float]) -> None:
    first, last = train(compression)
    assert first - last >= 0.95 * (uncompressed[0] - uncompressed[1])


def test_without_error_feedback_a_sparsifier_does_not_get_there(uncompressed: tuple[float, float]) -> None:
    _, last = train({"kind": "top_k", "error_feedback": False})
    assert last > 2 * uncompressed[1]
