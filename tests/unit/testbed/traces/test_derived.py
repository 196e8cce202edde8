"""Derived traces: the device's totals, shared among layers."""

import pytest

from testbed.traces.derived import DEVICES, derived_table
from testbed.traces.networks import network, parameter_shapes


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "vgg16"])
def test_a_network_that_was_measured_takes_what_was_measured(name: str) -> None:
    total = DEVICES["v100"].totals[name]  # type: ignore[index]
    table = derived_table(name)  # type: ignore[arg-type]
    assert table.forward_s == pytest.approx(total.forward_s)
    assert table.backward_s == pytest.approx(total.backward_s)


def test_layers_take_their_share_and_have_all_gradients() -> None:
    table = derived_table("resnet50")
    layers = network("resnet50")
    first, last = table.layers[0], table.layers[-1]
    assert first.forward_s / last.forward_s == pytest.approx(
        layers[0].num_multiplications / layers[-1].num_multiplications
    )
    assert table.size_bytes == 4 * 25_557_032
    assert len(table.gradients()) == len(layers)


def test_the_rate_of_other_networks_is_resnet_50s() -> None:
    device = DEVICES["v100"]
    total = device.totals["resnet50"]
    multiplications = 3 * device.batch_size * sum(layer.num_multiplications for layer in network("resnet50"))
    assert multiplications / (total.forward_s + total.backward_s) == pytest.approx(
        device.multiplications_per_s, rel=0.005
    )
    bert = derived_table("bert_base")
    assert bert.backward_s == pytest.approx(2 * bert.forward_s)
    # The first parameters' gradients are ready last, the embeddings' with nothing of backward left.
    assert bert.gradients()[-1].ready_s == pytest.approx(bert.backward_s)


def test_time_is_in_proportion_to_the_batch() -> None:
    for name in ("resnet50", "gpt2"):
        small, large = derived_table(name, batch_size=8), derived_table(name, batch_size=32)
        assert large.compute_s == pytest.approx(4 * small.compute_s)
        assert large.size_bytes == small.size_bytes


def test_shared_parameters_are_exchanged_once() -> None:
    assert derived_table("gpt2").size_bytes == 4 * 124_439_808
    assert len(parameter_shapes("gpt2")) == 148
