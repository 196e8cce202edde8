"""The tables of a record: what their columns are. Times are wall seconds since the run's epoch."""

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

ITERATION_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "phase": pl.String,
    "index": pl.Int32,
    "start_s": pl.Float64,
    "data_end_s": pl.Float64,  # the host had the batch
    "host_to_device_end_s": pl.Float64,  # it was where it is computed with
    "forward_end_s": pl.Float64,
    "backward_compute_end_s": pl.Float64,
    "backward_end_s": pl.Float64,
    "optimizer_end_s": pl.Float64,
    "end_s": pl.Float64,
    "loss": pl.Float64,
    "num_samples": pl.Int32,
    "cpu_s": pl.Float64,
    "run_queue_delay_s": pl.Float64,
    "communication_run_queue_delay_s": pl.Float64,
    "slowdown": pl.Float64,
    "staleness": pl.Int32,  # updates that the parameters lacked when the gradient was made
    "forward_stall_s": pl.Float64,  # of the forward pass, waiting for gradients of the iteration before
    "pace_s": pl.Float64,  # how long computing should have lasted; 0: as long as it takes
    "overrun_s": pl.Float64,  # by how much a gradient was handed over later than it was due, at most
}


EXCHANGING: Final = ("warmup", "measured")
"""Phases in whose iterations workers exchange something."""


def iteration_parts(row: Mapping[str, Any], *, last_s: float, before_s: float) -> list[tuple[str, float, float]]:
    """What an iteration of one worker, a row of ITERATION_SCHEMA, consists of, without gaps: name, begin and end.

    `last_s`: when the last worker's last gradient was ready, until when this one waits for it; of workers of which
    each ends an iteration by itself the row's own. `before_s`: the same of the iteration before, or whatever is not
    later than the batch was there. What the forward pass waits for gradients is exposed communication, but for what
    lies before `before_s`; at its layers, but only the sum is known, which comes before the rest of the pass here.
    """
    copied_s = row["host_to_device_end_s"]
    begun_s = copied_s + row["forward_stall_s"]
    caught_up_s = max(copied_s, min(before_s, begun_s))
    ready_s, reduced_s = row["backward_compute_end_s"], row["backward_end_s"]
    waited_s = max(ready_s, min(last_s, reduced_s))
    parts = [
        ("data", row["start_s"], row["data_end_s"]),
        ("host to device", row["data_end_s"], copied_s),
        ("waiting for slower workers", copied_s, caught_up_s),
        ("exposed communication", caught_up_s, begun_s),
        ("forward", begun_s, row["forward_end_s"]),
        ("backward", row["forward_end_s"], ready_s),
        ("waiting for slower workers", ready_s, waited_s),
        ("exposed communication", waited_s, reduced_s),
        ("optimizer", reduced_s, row["optimizer_end_s"]),
        ("other", row["optimizer_end_s"], row["end_s"]),
    ]
    optional = ("data", "host to device", "waiting for slower workers", "exposed communication")
    return [part for part in parts if part[0] not in optional or part[2] > part[1]]


def last_ready_s(iterations: pl.DataFrame, *, ends_together: bool) -> pl.DataFrame:
    """ITERATION_SCHEMA with `last_s` and `before_s` for :func:`iteration_parts`."""
    ready_s, copied_s = pl.col("backward_compute_end_s"), pl.col("host_to_device_end_s")
    together = pl.col("phase").is_in(EXCHANGING) & ends_together
    before_s = pl.col("last_s").shift(1).over("rank", "phase", order_by="index").fill_null(copied_s)
    return iterations.with_columns(
        last_s=pl.when(together).then(ready_s.max().over("phase", "index")).otherwise(ready_s)
    ).with_columns(before_s=pl.when(together).then(before_s).otherwise(copied_s))


BUCKET_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "phase": pl.String,
    "index": pl.Int32,
    "sequence": pl.Int64,
    "size_bytes": pl.Int64,
    "enqueued_s": pl.Float64,
    "started_s": pl.Float64,
    "first_byte_s": pl.Float64,
    "done_s": pl.Float64,
    "payload_bytes": pl.Int64,
    "encode_s": pl.Float64,
    "decode_s": pl.Float64,
}
LINK_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "link": pl.String,  # "w0-s0"
    "node": pl.String,  # the sending node of this direction
    "port": pl.String,  # its interface
    "class_bytes": pl.Int64,  # of the HTB class or the relay, cumulative
    "class_packets": pl.Int64,
    "drops": pl.Int64,
    "overlimits": pl.Int64,
    "backlog_bytes": pl.Int64,
    "interface_bytes": pl.Int64,
    "rate_bps": pl.Float64,  # configured of the class at that moment
    "read_from_s": pl.Float64,  # counters are of a moment between this one and `at_s`
}
CHANGE_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,  # when the kernel had taken it
    "link": pl.String,
    "node": pl.String,  # the sending node of this direction
    "to": pl.String,
    "setting": pl.String,  # as in the spec, or "carrier"
    "before": pl.String,  # as a spec writes it: "100mbit"
    "after": pl.String,
    "rate_bps": pl.Float64,  # in force from now on
    "source": pl.String,  # schedule, trace or manual
}
BACKLOG_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "link": pl.String,
    "node": pl.String,
    "elapsed_s": pl.Float64,
    "backlog_bytes": pl.Int64,
    "sent_bytes": pl.Int64,
    "due_bytes": pl.Float64,  # rate x time
}
STAGE_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "stage": pl.String,  # of a worker's life beside its iterations: start, reading; batch: of an iteration's input
    "begin_s": pl.Float64,
    "end_s": pl.Float64,
    "size_bytes": pl.Int64,  # that were read
}
WAIT_SCHEMA: Final[dict[str, Any]] = {
    "host": pl.String,  # of a worker, a parameter server or an aggregator
    "computing": pl.Boolean,  # threads that compute, not those that move gradients
    "behind": pl.Boolean,  # while one of the host that moves gradients ran, which has a core before them
    "begin_s": pl.Float64,  # from here on at least one of them waited for a core ...
    "end_s": pl.Float64,  # ... until here
}
MACHINE_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "ticks": pl.Int64,  # cumulative, as all of these
    "idle_ticks": pl.Int64,
    "steal_ticks": pl.Int64,
    "softnet_drops": pl.Int64,
    "softnet_squeezes": pl.Int64,
}

FRAMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "iterations": ITERATION_SCHEMA,
    "buckets": BUCKET_SCHEMA,
    "links": LINK_SCHEMA,
    "backlog": BACKLOG_SCHEMA,
    "machine": MACHINE_SCHEMA,
    "changes": CHANGE_SCHEMA,
    "stages": STAGE_SCHEMA,
    "waits": WAIT_SCHEMA,
}
