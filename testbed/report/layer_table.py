"""A run's own times as a table of layers, to be replayed. Pure arithmetic on a record's frames."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import polars as pl

from testbed.errors import SpecError
from testbed.experiment.documents import load_document
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.iterative import Iterative
from testbed.record.reader import Record
from testbed.traces.table import LayerTable


def recorded_table(record: Record) -> LayerTable:
    """Of a record; without times of exchanges where the summary has none. Raises SpecError for a run that has no
    iterations of layers, or whose numbers do not stand."""
    experiment = validate(load_document(record.spec_yaml))
    measured = record.iterations.filter(pl.col("phase") == "measured")
    if not isinstance(experiment.workload, Iterative) or measured.is_empty():
        raise SpecError(
            f"{record.path}: a table of layers is made from measured iterations of training, replay or synthetic, and "
            f"this is a record of {experiment.workload.kind} with {measured.height}"
        )
    if experiment.workload.graph() is not None:
        raise SpecError(f"{record.path}: a graph was replayed, which has no layers; allowed: --format chrome")
    summary = record.summary
    if not summary.stands:
        why = "; ".join(summary.reasons)
        raise SpecError(f"{record.path}: the run is {summary.outcome}, so its times are of this machine: {why}")
    table = table_of(experiment, record.iterations, record.buckets, dilation=summary.dilation)
    if summary.allreduce is not None and summary.allreduce.time_s is None:
        return replace(table, layers=tuple(layer._replace(communication_s=None) for layer in table.layers))
    return table


def table_of(experiment: Experiment, iterations: pl.DataFrame, buckets: pl.DataFrame, *, dilation: float) -> LayerTable:
    """Median times of the measured iterations, of all workers, in virtual seconds, as on workers that nothing slows: a
    replay has slowdowns of its own; from ITERATION_SCHEMA and BUCKET_SCHEMA.

    Of backward it is known when each bucket was handed over, which is when its last layer was through; the layers of a
    bucket share what lies between two as the workload says, and so do those of the forward pass. A layer's
    communication is its share, by bytes, of the time in which its bucket was in service. Loading a batch is a part of
    the forward pass where the host does it; what an iteration waits for because a table or the storage says so is not.
    """
    assert isinstance(experiment.workload, Iterative), "of layers"
    declared = experiment.workload.layer_table()
    measured = iterations.filter(pl.col("phase") == "measured")
    storage = experiment.storage
    waits = experiment.workload.paced() or (storage is not None and storage.reads_batches)
    begin = "host_to_device_end_s" if waits else "start_s"
    forward_s = _computing_s(measured, pl.col("forward_end_s") - pl.col(begin) - pl.col("forward_stall_s")) / dilation
    backward_s = _computing_s(measured, pl.col("backward_compute_end_s") - pl.col("forward_end_s")) / dilation
    update_s = _computing_s(measured, pl.col("optimizer_end_s") - pl.col("backward_end_s")) / dilation
    declared_s = _ready(declared)
    ends_s: Sequence[float] = [
        at_s * backward_s / declared.backward_s if declared.backward_s else 0.0 for at_s in declared_s
    ]
    exchanges_s: Sequence[float | None] = [None] * len(declared.layers)
    if experiment.fusion.in_turn and experiment.synchronisation.gradients_in_every_iteration:
        in_turn = _in_turn(measured, buckets, dilation)
        ends_s = _between_buckets(declared, declared_s, in_turn, backward_s)
        exchanges_s = list(_shares(declared, in_turn))
    durations_s = [later_s - earlier_s for earlier_s, later_s in zip([0.0, *ends_s], ends_s, strict=False)]
    stretch = forward_s / declared.forward_s if declared.forward_s else 0.0
    return LayerTable(
        layers=tuple(
            layer._replace(
                forward_s=layer.forward_s * stretch,
                backward_s=max(0.0, duration_s),
                communication_s=exchange_s,
                shapes=layer.tensors,
            )
            for layer, duration_s, exchange_s in zip(
                declared.layers, reversed(durations_s), reversed(exchanges_s), strict=True
            )
        ),
        update_s=max(0.0, update_s),
        undivided_s=declared.undivided_s * stretch,
        input_s=declared.input_s,
        host_to_device_s=declared.host_to_device_s,
        batch_size=declared.batch_size,
        recorded_on=declared.recorded_on,
    )


def _computing_s(frame: pl.DataFrame, expression: pl.Expr) -> float:
    """Median, as long as it would have been without the slowdowns that were drawn."""
    return float(np.median(frame.select((expression / pl.col("slowdown")).alias("x"))["x"].to_numpy()))


def _ready(table: LayerTable) -> list[float]:
    """When each layer is through, since the beginning of backward, the last layer first."""
    return list(accumulate(layer.backward_s for layer in reversed(table.layers)))


def _in_turn(measured: pl.DataFrame, buckets: pl.DataFrame, dilation: float) -> list[tuple[int, float, float]]:
    """Bytes of each bucket, when it was handed over since the beginning of backward on a worker that nothing slows, and
    for how long it was in service, without what it shared with one before it: medians, in the order in which they went
    out."""
    begins = measured.select("rank", "index", "forward_end_s", "slowdown")
    joined = buckets.filter(pl.col("phase") == "measured").join(begins, on=["rank", "index"])
    before_s = pl.col("done_s").cum_max().shift(1).over("rank", "index", order_by="started_s")
    numbered = joined.with_columns(
        pl.col("enqueued_s").rank("ordinal").over("rank", "index").alias("number"),
        ((pl.col("enqueued_s") - pl.col("forward_end_s")) / pl.col("slowdown") / dilation).alias("ready_s"),
        ((pl.col("done_s") - pl.max_horizontal("started_s", before_s)).clip(lower_bound=0.0) / dilation).alias(
            "service_s"
        ),
    )
    found = (
        numbered.group_by("number")
        .agg(pl.col("size_bytes").first(), pl.col("ready_s").median(), pl.col("service_s").median())
        .sort("number")
    )
    return [(int(row["size_bytes"]), float(row["ready_s"]), float(row["service_s"])) for row in found.to_dicts()]


def _last_bytes(table: LayerTable) -> list[int]:
    """How many bytes of gradients there are once each layer is through, the last layer first."""
    return list(accumulate(layer.size_bytes for layer in reversed(table.layers)))


def _between_buckets(
    table: LayerTable, declared_s: Sequence[float], buckets: Sequence[tuple[int, float, float]], backward_s: float
) -> list[float]:
    """When each layer was through, the last layer first: as measured at the borders of buckets."""
    ends = _last_bytes(table)
    borders_declared_s, borders_s = [0.0], [0.0]
    filled = 0
    for size_bytes, ready_s, _ in buckets:
        filled += size_bytes
        closing = next(number for number, end in enumerate(ends) if end >= filled)
        borders_declared_s.append(max(declared_s[closing], borders_declared_s[-1]))
        borders_s.append(max(ready_s, borders_s[-1]))
    if declared_s[-1] > borders_declared_s[-1]:  # layers without gradients at the front
        borders_declared_s.append(declared_s[-1])
        borders_s.append(max(backward_s, borders_s[-1]))
    return [float(at_s) for at_s in np.interp(declared_s, borders_declared_s, borders_s)]


def _shares(table: LayerTable, buckets: Sequence[tuple[int, float, float]]) -> Iterator[float | None]:
    """Each layer's part of the time in which its bytes were in service, the last layer first."""
    ends = np.cumsum([0, *(size_bytes for size_bytes, _, _ in buckets)])
    services_s = np.cumsum([0.0, *(service_s for _, _, service_s in buckets)])
    begin = 0
    for layer in reversed(table.layers):
        end = begin + layer.size_bytes
        took_s = float(np.interp(end, ends, services_s) - np.interp(begin, ends, services_s))
        yield took_s if layer.size_bytes else None
        begin = end
