"""Networks' layers against what is known of them."""

from math import prod

import pytest

from testbed.experiment.workloads.synthetic import Synthetic
from testbed.traces.networks import NetworkName, network, parameter_shapes


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_parameters"),
    [
        ("alexnet", 16, 61_100_840),
        ("bert_base", 151, 109_482_240),
        ("googlenet", 173, 6_624_904),
        ("gpt2", 148, 124_439_808),
        ("mobilenet", 83, 4_231_976),
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("vgg16", 58, 138_365_992),
    ],
)
def test_a_network_has_the_parameters_that_its_authors_and_torchvision_give_it(
    name: NetworkName, num_tensors: int, num_parameters: int
) -> None:
    shapes = parameter_shapes(name)
    assert len(shapes) == num_tensors
    assert sum(map(prod, shapes)) == num_parameters
    assert sum(layer.num_parameters for layer in network(name)) == num_parameters


@pytest.mark.parametrize(
    ("name", "multiplications"),
    # Of images: the multiply-accumulates that torchvision's page gives for each; of text: 2 operations a parameter and
    # token without embeddings, and those of attention (Kaplan et al. 2020, arXiv:2001.08361, table 1).
    [
        ("alexnet", 0.714e9),
        ("googlenet", 1.50e9),
        ("resnet50", 4.09e9),
        ("resnet101", 7.80e9),
        ("vgg16", 15.47e9),
        ("mobilenet", 0.57e9),
        ("bert_base", 12 * 128 * (12 * 768**2 + 2 * 128 * 768)),
        ("gpt2", 1024 * (12 * (12 * 768**2 + 2 * 1024 * 768) + 50257 * 768)),
    ],
)
def test_a_forward_pass_has_the_multiplications_that_are_known(name: NetworkName, multiplications: float) -> None:
    assert sum(layer.num_multiplications for layer in network(name)) == pytest.approx(multiplications, rel=0.005)


def test_a_layer_that_uses_anothers_parameters_has_none() -> None:
    head = network("gpt2")[-1]
    assert (head.name, head.num_parameters) == ("lm_head", 0)
    assert head.num_multiplications > 0


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "mobilenet", "gpt2"])
def test_a_tenth_of_a_network_has_as_many_tensors_and_a_tenth_of_the_bytes(name: NetworkName) -> None:
    shapes = parameter_shapes(name)
    small = Synthetic(layers=name, scale=0.1).parameter_shapes()
    assert len(small) == len(shapes)
    assert sum(map(prod, small)) == pytest.approx(sum(map(prod, shapes)) / 10, rel=0.01)
    assert min(map(prod, small)) >= 1
