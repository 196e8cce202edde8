"""Synthetic training: the sizes and times that the spec says, through autograd as it is."""

import time

import pytest
import torch

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.synthetic import Synthetic
from testbed.plan.plan import make_plan


def synthetic(**options: object) -> Synthetic:
    workload = validate({"name": "x", "workload": {"kind": "synthetic", **options}}).workload
    assert isinstance(workload, Synthetic)
    return workload


def test_the_module_has_the_layers_that_the_plan_counts() -> None:
    workload = synthetic(layers=["1KiB", "100kB", "1B"])
    assert list(workload.parameter_shapes()) == [tuple(each.shape) for each in workload.build().parameters()]
    assert workload.parameter_counts() == [256, 25_024, 64]
    made = make_plan(
        validate(
            {"name": "x", "fusion": "layers", "workload": {"kind": "synthetic", "layers": ["1KiB", "100kB", "1B"]}}
        )
    )
    assert made.buckets == (64, 25_024, 256)


def test_passes_take_their_time_and_layers_their_part_of_it() -> None:
    module = synthetic(layers=["1KiB"] * 4, forward="40ms", backward="80ms").build()
    ready_s: list[float] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready_s.append(time.monotonic()))
    begun_s = time.monotonic()
    loss = torch.nn.functional.cross_entropy(module(torch.rand(3, 1, 8, 8)), torch.tensor([1, 2, 3]))
    forward_end_s = time.monotonic()
    loss.backward()
    assert forward_end_s - begun_s >= 0.04
    assert len(ready_s) == 4
    gaps_s = [later - earlier for earlier, later in zip([forward_end_s, *ready_s], ready_s, strict=False)]
    assert all(gap_s >= 0.02 for gap_s in gaps_s)


@pytest.mark.parametrize("order", [1, -1])
def test_it_trains_without_a_word_about_the_loss(order: int) -> None:
    module = synthetic(layers=["1KiB", "2KiB"][::order], forward="1ms", backward="1ms").build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = [parameter.clone() for parameter in module.parameters()]
    module(torch.rand(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    assert all(not torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))


def test_a_networks_tensors_become_ready_in_the_order_that_the_plan_counts() -> None:
    workload = synthetic(layers="mobilenet", scale=0.01, forward="1ms", backward="1ms")
    module = workload.build()
    parameters = list(module.parameters())
    assert list(workload.parameter_shapes()) == [tuple(each.shape) for each in parameters]
    ready: list[tuple[int, ...]] = []
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda each: ready.append(tuple(each.shape)))
    module(torch.rand(2, 1, 8, 8)).sum().backward()
    assert ready == list(workload.gradient_shapes())


def test_merged_layers_are_planned_from_the_time_that_backward_takes() -> None:
    """Neighbours join only where the next gradient is there before an all-reduce is through its start-up."""

    def buckets(backward: str) -> int:
        layers = ["256KiB"] * 8
        workload = {"kind": "synthetic", "layers": layers, "backward": backward}
        return len(make_plan(validate({"name": "x", "fusion": "merged", "workload": workload})).buckets)

    assert buckets("1us") == 1
    assert buckets("10s") == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "resnet51"}, "workload.layers"),
        ({"layers": []}, "workload.layers"),
        ({"layers": ["1XB"]}, "workload.layers"),
        ({"scale": 0}, "workload.scale"),
        ({"scale": 1.5}, "workload.scale"),
    ],
)
def test_what_no_network_can_be_is_refused_by_its_key(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        synthetic(**options)
