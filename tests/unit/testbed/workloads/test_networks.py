"""Networks' tensors against what is known of them."""

from math import prod

import pytest

from testbed.workloads._networks import NETWORKS, NetworkName, shrunk


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_parameters"),
    [("resnet50", 161, 25_557_032), ("vgg16", 58, 138_365_992), ("mobilenet", 83, 4_231_976)],
)
def test_a_network_has_the_parameters_that_its_paper_and_torchvision_give_it(
    name: NetworkName, num_tensors: int, num_parameters: int
) -> None:
    shapes = NETWORKS[name]
    assert len(shapes) == num_tensors
    assert sum(map(prod, shapes)) == num_parameters


def test_a_tenth_of_a_network_has_as_many_tensors_and_a_tenth_of_the_bytes() -> None:
    for shapes in NETWORKS.values():
        small = [shrunk(shape, 0.1) for shape in shapes]
        assert sum(map(prod, small)) == pytest.approx(sum(map(prod, shapes)) / 10, rel=0.01)
        assert min(map(prod, small)) >= 1
