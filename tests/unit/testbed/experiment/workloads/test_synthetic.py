"""Generated traces: the sizes and times that the spec says."""

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.synthetic import Synthetic
from testbed.plan.plan import make_plan


def synthetic(**options: object) -> Synthetic:
    workload = validate({"name": "x", "workload": {"kind": "synthetic", **options}}).workload
    assert isinstance(workload, Synthetic)
    return workload


def test_layers_are_matrices_of_whole_rows() -> None:
    workload = synthetic(layers=["1KiB", "100kB", "1B"])
    assert workload.parameter_counts() == [256, 25_024, 64]
    made = make_plan(
        validate(
            {"name": "x", "fusion": "layers", "workload": {"kind": "synthetic", "layers": ["1KiB", "100kB", "1B"]}}
        )
    )
    assert made.buckets == (64, 25_024, 256)


def test_layers_share_both_passes_equally() -> None:
    table = synthetic(layers=["1KiB"] * 4, forward="40ms", backward="80ms").layer_table()
    assert [(layer.forward_s, layer.backward_s) for layer in table.layers] == [pytest.approx((0.01, 0.02))] * 4


def test_merged_layers_are_planned_from_the_time_that_backward_takes() -> None:
    """Neighbours join only where the next gradient is there before an all-reduce is through its start-up."""

    def buckets(backward: str) -> int:
        layers = ["256KiB"] * 8
        workload = {"kind": "synthetic", "layers": layers, "backward": backward}
        spec = {"name": "x", "fusion": "merged", "link": {"delay": "1ms"}, "workload": workload}
        return len(make_plan(validate(spec)).buckets)

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
        ({"batch_size": 8}, "workload.batch_size"),
    ],
)
def test_what_no_network_can_be_is_refused_by_its_key(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        synthetic(**options)
