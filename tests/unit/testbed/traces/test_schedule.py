"""When a device is through with what, from the table of its layers."""

import pytest

from testbed.traces.derived import derived_table
from testbed.traces.networks import parameter_shapes
from testbed.traces.schedule import ComputeSchedule
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(
    layers=(
        Layer("first", 1.0, 2.0, 4 * 6, None, ((2, 2), (2,))),
        Layer("pool", 0.5, 0.25, 0),
        Layer("last", 3.0, 6.0, 4 * 10),
    ),
    update_s=8.0,
    input_s=0.75,
    host_to_device_s=0.25,
    undivided_s=0.1,
)


def test_tensors_are_needed_in_the_order_of_the_layers_and_ready_the_other_way_round() -> None:
    schedule = ComputeSchedule.of(TABLE)
    assert schedule.needed_s == pytest.approx((0.1, 0.1, 1.6))
    assert schedule.ready_s == pytest.approx((8.25, 8.25, 6.0))
    assert (schedule.forward_s, schedule.backward_s) == pytest.approx((4.6, 8.25))
    assert (schedule.update_s, schedule.input_s, schedule.host_to_device_s) == (8.0, 0.75, 0.25)
    assert schedule.compute_s == pytest.approx(20.85)


def test_dilated_everything_lasts_longer() -> None:
    schedule, longer = ComputeSchedule.of(TABLE), ComputeSchedule.of(TABLE).scaled(3)
    for name in ("forward_s", "backward_s", "update_s", "input_s", "host_to_device_s", "compute_s"):
        assert getattr(longer, name) == pytest.approx(3 * getattr(schedule, name))
    assert longer.needed_s == pytest.approx([3 * at_s for at_s in schedule.needed_s])
    assert longer.ready_s == pytest.approx([3 * at_s for at_s in schedule.ready_s])


def test_a_step_in_the_forward_pass_is_shared_by_the_sizes_of_layers() -> None:
    table = TABLE.updating_in_forward()
    assert table.compute_s == pytest.approx(TABLE.compute_s)
    assert table.update_s == 0
    assert [layer.forward_s for layer in table.layers] == pytest.approx([1 + 3.0, 0.5, 3 + 5.0])


def test_every_tensor_of_a_network_has_its_moment() -> None:
    for name in ("resnet50", "gpt2"):
        schedule = ComputeSchedule.of(derived_table(name))
        assert len(schedule.needed_s) == len(schedule.ready_s) == len(parameter_shapes(name))
        assert list(schedule.needed_s) == sorted(schedule.needed_s)
        assert list(schedule.ready_s) == sorted(schedule.ready_s, reverse=True)
        assert max(schedule.ready_s) <= schedule.backward_s


def test_a_size_without_shapes_is_one_matrix_of_as_many_bytes() -> None:
    for size_bytes in (4, 4 * 64, 4 * 67, 4 * 1000, 4 * 102_760_448):
        ((rows, columns),) = Layer("x", 0.0, 0.0, size_bytes).tensors
        assert 4 * rows * columns == size_bytes
        assert columns <= 64
    assert Layer("x", 0.0, 0.0, 0).tensors == ()
    with pytest.raises(ValueError, match="layer x has 7 bytes"):
        _ = Layer("x", 0.0, 0.0, 7).tensors


def test_a_batch_changes_times_and_neither_the_step_nor_the_gradients() -> None:
    with pytest.raises(ValueError, match="does not say"):
        TABLE.for_batch(8)
    table = derived_table("resnet50", batch_size=32)
    half = table.for_batch(16)
    assert (half.forward_s, half.backward_s) == pytest.approx((table.forward_s / 2, table.backward_s / 2))
    assert half.size_bytes == table.size_bytes
    assert half.batch_size == 16
    assert half.layers[3].shapes == table.layers[3].shapes
