# mypy: disable-error-code="no-untyped-call"
"""Layers that compute nothing: gradients of their own, parameters that take no memory."""

import pytest
import torch
from torch import nn

from testbed.worker.replayed_layer import Gradients, ReplayedLayer


def test_gradients_go_on_where_the_last_ones_ended_and_the_seed_decides_them() -> None:
    one, same, other = (Gradients(seed, largest=10) for seed in (1, 1, 2))
    first, second = one.take((2, 3)), one.take((4,))
    assert torch.equal(torch.cat([first.view(-1), second]), same.take((10,)))
    assert not torch.equal(other.take((2, 3)), first)
    assert float(same.take((10,)).std()) == pytest.approx(1e-3, rel=0.9)


@pytest.mark.parametrize("count", [1, 2**20, 2**20 + 7, 3 * 2**20])
def test_tensors_of_any_size_are_filled_and_none_is_copied(count: int) -> None:
    gradients = Gradients(1, largest=count)
    for _ in range(5):
        taken = gradients.take((count,))
        assert taken.shape == (count,)
        assert torch.count_nonzero(taken) == count
        assert taken.untyped_storage().data_ptr() == gradients.take((1,)).untyped_storage().data_ptr()


def test_parameters_without_values_take_no_memory_and_get_gradients_of_their_shape() -> None:
    shapes = [((64, 9), (64,)), ((10, 64),)]
    gradients = Gradients(1, largest=640)
    layers = [ReplayedLayer(each, gradients, with_values=False) for each in shapes]
    model = nn.Sequential(*layers)
    assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) == 4 * 3
    ready: list[tuple[int, ...]] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: ready.append(tuple(each.shape)))
    model(torch.zeros(1)).sum().backward()
    assert ready == [(10, 64), (64, 9), (64,)], "the last layer's first"
    assert all(parameter.grad is not None and parameter.grad.count_nonzero() for parameter in model.parameters())


def test_parameters_with_values_can_be_written_to() -> None:
    layer = ReplayedLayer(((3, 2),), Gradients(1, largest=6), with_values=True)
    (parameter,) = layer.parameters()
    with torch.no_grad():
        parameter.copy_(torch.ones(3, 2))
    assert float(parameter.detach().sum()) == 6.0
