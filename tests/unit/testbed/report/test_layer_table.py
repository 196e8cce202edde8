"""A run's own times, exported and replayed: over real sockets on loopback."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from testbed.experiment.experiment import validate
from testbed.record.frames import BUCKET_SCHEMA, ITERATION_SCHEMA
from testbed.report.layer_table import table_of
from testbed.traces.formats.layers import layers_text
from tests import rows
from tests.training_ranks import Worker, trained

PACE = {"forward": "80ms", "backward": "160ms", "update": "20ms"}
LENGTHS = {"compute_only": 1, "warmup": 2, "iterations": 5}
SPEC: dict[str, Any] = {
    "fusion": {"bytes": "512KiB"},
    "workload": {"kind": "training", "batch_size": 4, "pace": PACE, **LENGTHS},
}


def frames(workers: list[Worker]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Iterations and buckets as a record has them."""
    iterations, buckets = [], []
    for rank, worker in enumerate(workers):
        for iteration in worker.iterations:
            key = {"rank": rank, "phase": iteration.phase, "index": iteration.index}
            named = [name for name in ITERATION_SCHEMA if name not in key]
            iterations.append(key | {name: getattr(iteration, name) for name in named})
            buckets += [
                key | {name: getattr(bucket, name) for name in BUCKET_SCHEMA if name not in key}
                for bucket in iteration.buckets
            ]
    return pl.DataFrame(iterations, schema=ITERATION_SCHEMA), pl.DataFrame(buckets, schema=BUCKET_SCHEMA)


def sizes(worker: Worker) -> list[list[int]]:
    """Of the buckets of each measured iteration, in order."""
    return [
        [bucket.size_bytes for bucket in sorted(iteration.buckets, key=lambda each: each.sequence)]
        for iteration in worker.phase("measured")
    ]


def computing_s(workers: list[Worker]) -> float:
    """Median over workers and iterations."""
    return float(
        pl.Series(
            iteration.backward_compute_end_s - iteration.start_s + iteration.optimizer_end_s - iteration.backward_end_s
            for worker in workers
            for iteration in worker.phase("measured")
        ).median()  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("fusion", [{"bytes": "512KiB"}, "none"], ids=str)
def test_an_exported_run_replays_with_its_times_its_bytes_and_its_buckets(fusion: object, tmp_path: Path) -> None:
    spec = {**SPEC, "fusion": fusion}
    workers = trained(spec)
    table = table_of(validate({"name": "x", "workers": 2, **spec}), *frames(workers), dilation=1.0)
    assert table.batch_size == 4
    assert table.update_s == pytest.approx(0.02)
    assert table.forward_s == pytest.approx(0.08)
    assert [layer.communication_s is not None for layer in table.layers] == [True] * len(table.layers)
    path = tmp_path / "exported.txt"
    path.write_text(layers_text(table))
    again = trained({**spec, "workload": {"kind": "replay", "trace": str(path), **LENGTHS}})
    assert [sizes(worker) for worker in again] == [sizes(worker) for worker in workers]
    # What the machine was late by, the export has taken for computing, and the replay may add its own.
    late_s = max(iteration.overrun_s for worker in again for iteration in worker.phase("measured"))
    assert computing_s(again) == pytest.approx(computing_s(workers), rel=0.02, abs=late_s)


def test_a_run_without_a_pace_is_exported_as_long_as_it_took(tmp_path: Path) -> None:
    spec = {"fusion": "layers", "workload": {"kind": "training", "batch_size": 4, **LENGTHS}}
    workers = trained(spec)
    iterations, buckets = frames(workers)
    table = table_of(validate({"name": "x", "workers": 2, **spec}), iterations, buckets, dilation=1.0)
    measured = iterations.filter(pl.col("phase") == "measured")
    backward_s = (measured["backward_compute_end_s"] - measured["forward_end_s"]).median()
    assert table.backward_s == pytest.approx(backward_s, rel=0.25)
    assert all(layer.backward_s >= 0 for layer in table.layers)


def test_what_a_slowdown_added_is_left_out(tmp_path: Path) -> None:
    """A replay of the table on the same slow hosts draws it again."""
    spec = {"fusion": {"bytes": "512KiB"}, "workload": {"kind": "training", "pace": PACE, **LENGTHS}}
    iterations, buckets = frames(trained(spec))
    experiment = validate({"name": "x", "workers": 2, **spec})
    whole = table_of(experiment, iterations, buckets, dilation=1.0)
    slowed = iterations.with_columns(slowdown=pl.lit(2.0))
    half = table_of(experiment, slowed, buckets, dilation=1.0)
    assert (half.forward_s, half.backward_s, half.update_s) == pytest.approx(
        (whole.forward_s / 2, whole.backward_s / 2, whole.update_s / 2)
    )
    assert [layer.backward_s for layer in half.layers] == pytest.approx([each.backward_s / 2 for each in whole.layers])
    assert [layer.communication_s for layer in half.layers] == [layer.communication_s for layer in whole.layers]


def test_exchanges_that_overlap_last_no_longer_than_all_of_them_together() -> None:
    """The table says how long exchanges are that follow each other."""
    spec = {
        "name": "x",
        "workers": 2,
        "fusion": "none",
        "workload": {"kind": "synthetic", "layers": ["1KiB", "1KiB"]},
    }
    together = [
        rows.bucket(rank, 12.0 + 0.01 * number, 14.0 + number) | {"sequence": number, "size_bytes": 1024}
        for rank in range(2)
        for number in range(2)
    ]
    found = rows.iterations(*(rows.iteration(rank, 10.0) for rank in range(2)))
    table = table_of(validate(spec), found, rows.buckets(*together), dilation=1.0)
    assert [layer.communication_s for layer in table.layers] == pytest.approx([1.0, 2.0])


def test_what_an_iteration_waits_for_is_in_none_of_its_passes(tmp_path: Path) -> None:
    """Reading and copying are said by the table that was replayed, and by the storage of the spec."""
    path = tmp_path / "layers.txt"
    path.write_text(
        "# input_us=7\n# host_to_device_us=3\n# batch_size=4\n"
        "Id\tName\tForward\tBackward\tComm\tSize\n0\ta\t1\t1\t-\t4000\n1\tb\t3\t1\t-\t4000\n"
    )
    averaging = {"kind": "local_sgd", "every": 2}  # so that buckets say nothing of layers
    spec = {"name": "x", "workers": 2, "workload": {"kind": "replay", "trace": str(path)}, "synchronisation": averaging}
    found = rows.iterations(
        *(rows.iteration(rank, 10.0, data_end_s=10.25, host_to_device_end_s=10.5) for rank in range(2))
    )
    table = table_of(validate(spec), found, rows.buckets(), dilation=1.0)
    assert [layer.forward_s for layer in table.layers] == pytest.approx([0.5 / 4, 1.5 / 4])
    assert (table.input_s, table.host_to_device_s) == pytest.approx((7e-6, 3e-6))
