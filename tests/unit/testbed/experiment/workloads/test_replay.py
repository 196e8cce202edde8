# mypy: disable-error-code="no-untyped-call"
"""Replayed traces, over real sockets on loopback: when gradients are ready, which, and how many bytes."""

from pathlib import Path
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.replay import Replay
from testbed.plan.plan import make_plan
from testbed.traces.derived import derived_table
from testbed.traces.networks import parameter_shapes
from testbed.traces.recorded import recorded_table
from tests.training_ranks import Worker, trained

LENGTHS = {"compute_only": 1, "warmup": 2, "iterations": 2}
LAYERS = """# batch_size=4
# update_us=10000
Id Name Forward Backward Comm Size Shapes
0 front 20000 40000 - 65792 64x256;64
1 pool 10000 20000 - 0 -
2 back 30000 60000 - 1048576 -
"""


def replay(**options: object) -> Replay:
    workload = validate({"name": "x", "workload": {"kind": "replay", **options}}).workload
    assert isinstance(workload, Replay)
    return workload


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "small.txt"
    path.write_text(LAYERS)
    return path


@pytest.fixture(scope="module")
def spec(path: Path) -> dict[str, Any]:
    return {"fusion": "layers", "workload": {"kind": "replay", "trace": str(path), **LENGTHS}}


@pytest.fixture(scope="module")
def workers(spec: dict[str, Any]) -> list[Worker]:
    return trained({**spec, "workload": {**spec["workload"], "verify_gradients": True}})


@pytest.mark.quiet  # to a millisecond
def test_each_gradient_is_handed_over_when_its_layer_is_due(workers: list[Worker]) -> None:
    """And every mean was compared with the float64 mean of what all workers made. That one is late by more than is
    counted, because its worker lost its core just then, is the machine's; that all are would be ours."""
    late_s: list[list[float]] = [[], [], []]
    for worker in workers:
        for iteration in worker.phase("measured"):
            assert iteration.forward_end_s - iteration.start_s == pytest.approx(0.06)
            assert iteration.pace_s == pytest.approx(0.06 + 0.12 + 0.01)
            assert iteration.num_samples == 4
            due_s = [iteration.forward_end_s + at_s for at_s in (0.06, 0.12, 0.12)]
            buckets = sorted(iteration.buckets, key=lambda bucket: bucket.sequence)
            assert [bucket.size_bytes for bucket in buckets] == [1048576, 65536, 256]
            for bucket, at_s, found_s in zip(buckets, due_s, late_s, strict=True):
                assert at_s <= bucket.enqueued_s
                found_s.append(bucket.enqueued_s - at_s - iteration.overrun_s)
    assert all(min(found_s) <= 1e-3 for found_s in late_s)


def test_workers_have_gradients_of_their_own_and_the_same_mean(workers: list[Worker], spec: dict[str, Any]) -> None:
    digests = {worker.finished.parameters_sha256 for worker in workers}
    assert len(digests) == 1
    assert workers[0].finished.num_parameters == (65792 + 1048576) / 4
    other = trained({**spec, "seed": 2})
    assert {worker.finished.parameters_sha256 for worker in other}.isdisjoint(digests)


def test_nobody_computes_alone_where_nobody_needs_a_core(workers: list[Worker]) -> None:
    for worker in workers:
        assert worker.barriers == ["started", "compute_only", "compute_only_done", "warmup", "measure", "done"]
        assert worker.phase("compute_alone") == []
        assert len(worker.phase("compute_only")) == LENGTHS["compute_only"]


def test_a_replay_has_no_loss(workers: list[Worker]) -> None:
    assert all(loss != loss for worker in workers for loss in worker.losses())


@pytest.mark.parametrize(
    "more",
    [
        {"fusion": "priority"},
        {"fusion": "merged"},
        {"compression": {"kind": "powersgd", "rank": 1}},
        {"compression": "top_k"},
        {"synchronisation": {"kind": "local_sgd", "every": 2}, "fusion": "size"},
    ],
    ids=str,
)
def test_everything_that_training_goes_through_takes_a_replay(spec: dict[str, Any], more: dict[str, Any]) -> None:
    made = make_plan(validate({"name": "x", "workers": 2, **spec, **more}))
    workers = trained({**spec, **more})
    assert len({worker.finished.parameters_sha256 for worker in workers}) == 1
    for worker in workers:
        last = worker.phase("measured")[-1]
        assert sorted(bucket.size_bytes for bucket in last.buckets) == sorted(4 * count for count in made.buckets)


def test_a_network_has_its_own_tensors_and_the_times_of_the_device() -> None:
    workload = replay(trace="resnet50")
    assert (workload.device, workload.batch_size) == ("v100", 32), "said, so that a record depends on no default"
    assert tuple(workload.parameter_shapes()) == parameter_shapes("resnet50")
    assert workload.layer_table() == derived_table("resnet50", device="v100", batch_size=32)
    assert sum(workload.layer_backward_s()) == pytest.approx(0.0648)
    half = replay(trace="resnet50", batch_size=16)
    assert half.layer_table().compute_s == pytest.approx(workload.layer_table().compute_s / 2)
    assert "v100" in workload.computing()
    assert "derived" in workload.computing()


def test_a_network_that_was_recorded_has_its_input_and_its_update_too() -> None:
    workload = replay(trace="gpt2", device="h100_bf16", batch_size=16)
    table = workload.layer_table()
    assert table == recorded_table("gpt2", device="h100_bf16", batch_size=16)
    assert table.host_to_device_s > 0
    assert sum(layer.size_bytes for layer in table.layers) == 4 * 124_439_808
    assert "recorded on NVIDIA H100 80GB HBM3" in workload.computing()
    with pytest.raises(SpecError, match="workload: batch_size: gpt2 was recorded on h100 with 1 to 32 samples"):
        replay(trace="gpt2", device="h100", batch_size=64)


def test_layers_without_gradients_take_their_time_all_the_same() -> None:
    workload = replay(trace="gpt2", batch_size=1)
    table = workload.layer_table()
    assert table.layers[-1].tensors == ()
    backward_s = workload.layer_backward_s()
    assert len(backward_s) == len(workload.layer_shapes())
    assert backward_s[-1] >= table.layers[-1].backward_s


def test_a_file_is_read_into_the_spec_and_its_batch_can_be_another(path: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy.txt"
    copied.write_text(path.read_text())
    experiment = validate({"name": "x", "workload": {"kind": "replay", "trace": str(copied)}})
    copied.unlink()
    again = validate(experiment.dump())
    assert again == experiment
    assert again.sha256() == experiment.sha256()
    assert isinstance(again.workload, Replay)
    assert again.workload.layer_table().batch_size == 4
    double = replay(trace=str(path), batch_size=8).layer_table()
    assert double.forward_s == pytest.approx(0.12)
    assert double.update_s == pytest.approx(0.01)


def test_the_rest_of_an_iteration_may_be_said_of_a_network_named() -> None:
    said, silent = (replay(trace="resnet50", **more).layer_table() for more in ({"update": "31ms"}, {}))
    assert silent.update_s == 0
    assert said.update_s == pytest.approx(0.031)
    assert said.compute_s == pytest.approx(silent.compute_s + 0.031)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "resnet51"}, "neither a network nor a file; allowed: alexnet, bert_base"),
        ({"trace": "resnet50", "device": "k80"}, "workload.device.*allowed: 'v100'"),
        ({"trace": "resnet50", "batch_size": 0}, "workload.batch_size"),
        ({}, "workload.trace"),
        ({"trace": "resnet50", "learning_rate": 0.1}, "workload.learning_rate"),
        ({"trace": {"file": "x", "layers": "a b\n"}}, "columns are expected first"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_what_can(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replay(**options)


def test_what_a_file_does_not_say_cannot_be_read_from_it(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="device: a file says what was recorded"):
        replay(trace=str(path), device="v100")
    with pytest.raises(SpecError, match="update: a file says how long"):
        replay(trace=str(path), update="10ms")
    silent = tmp_path / "silent.txt"
    silent.write_text("Id Name Forward Backward Comm Size\n0 a 1 2 - 8\n")
    assert replay(trace=str(silent)).layer_table().batch_size is None
    with pytest.raises(SpecError, match="does not say of how many samples"):
        replay(trace=str(silent), batch_size=8)
    silent.write_text("Id Name Forward Backward Comm Size\n0 a 1 2 - 7\n")
    with pytest.raises(SpecError, match="layer a has 7 bytes"):
        replay(trace=str(silent))
