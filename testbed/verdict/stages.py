"""Where the time of a whole job went: the stages of the papers' models, from the launch to the last iteration. Pure.

    start            from the launch until the last worker had started, and what sets up its communication later
    reading          what has to be read from the storage node before the first iteration, until the last worker has it
    input            waiting for an iteration's batch
    host to device   waiting for its copying
    forward, backward
    waiting          for slower workers' gradients
    communication    exposed: what computing does not hide
    update           the optimizer's step

Start and reading end for all when they end for the last worker; the others are sums over all iterations that
communicate, warm-up included, and means over workers. They are timed by the workers; the whole is timed by the
controller, as the time between barriers, without what the testbed does for itself in between: iterations without
communication, which are there to compare with, and reading counters. What is left is said.
"""

from collections.abc import Iterator
from typing import Final

import polars as pl

from testbed.record.summary import StagesSummary, StorageSummary
from testbed.verdict.facts import Facts
from testbed.verdict.parts import worker_parts

_PHASES: Final = ("warmup", "measured")


def stages_summary(facts: Facts) -> StagesSummary | None:
    """None where a run did not come to its end, or its workload has no such stages."""
    whole_s = sum(end_s - begin_s for begin_s, end_s in _job(facts))
    parts = pl.concat([_sums(facts, phase) for phase in _PHASES])
    if not whole_s or parts.is_empty():
        return None
    sums = parts.group_by("rank").sum().drop("rank", "num_iterations").mean().row(0, named=True)
    found_s = {
        "start_s": _start_s(facts),
        "reading_s": _length_s(facts.stages.filter(pl.col("stage") == "reading")),
        "input_s": sums["data_s"] - sums["host_to_device_s"],
        "host_to_device_s": sums["host_to_device_s"],
        "forward_s": sums["forward_s"],
        "backward_s": sums["backward_s"],
        "waiting_s": sums["waiting_s"],
        "communication_s": sums["exposed_s"],
        "update_s": sums["optimizer_s"],
    }
    return StagesSummary(
        wall_s=whole_s / facts.dilation,
        num_iterations=sum(int(each) for each in parts.filter(pl.col("rank") == 0)["num_iterations"]),
        time_to_start_s=(found_s["start_s"] + found_s["reading_s"]) / facts.dilation,
        **{name: time_s / facts.dilation for name, time_s in found_s.items()},
        unaccounted_s=(whole_s - sum(found_s.values())) / facts.dilation,
    )


def _job(facts: Facts) -> Iterator[tuple[float, float]]:
    """The stretches of the controller's clock that are the job's own, in wall seconds; none unless all are known."""
    barriers = facts.barriers
    before, after = ("started", "started") if "read" not in barriers else ("started", "read")
    needed = {before, after, "compute_only_done", "warmup", "measure", "done"}
    if facts.launched_s is None or not needed <= barriers.keys():
        return
    yield facts.launched_s, barriers[before].arrived_s
    if after != before:
        yield barriers[before].released_s, barriers[after].arrived_s
    for begin, end in (("compute_only_done", "warmup"), ("warmup", "measure"), ("measure", "done")):
        yield barriers[begin].released_s, barriers[end].arrived_s


def _sums(facts: Facts, phase: str) -> pl.DataFrame:
    """Of each worker, over the phase's iterations, wall seconds."""
    parts = worker_parts(
        facts.iterations, num_workers=facts.num_workers, phase=phase, ends_together=facts.ends_together
    )
    times = pl.col(pl.Float64).exclude("loss", "start_s", "end_s", "slowdown")
    return parts.group_by("rank").agg(times.sum(), pl.len().alias("num_iterations")).sort("rank")


def _start_s(facts: Facts) -> float:
    """Of the job: each stretch until its last worker is through."""
    starts = facts.stages.filter(pl.col("stage") == "start").sort("rank", "begin_s")
    numbered = starts.with_columns(number=pl.int_range(pl.len()).over("rank"))
    return sum(_length_s(rows) for _, rows in numbered.group_by("number"))


def _length_s(rows: pl.DataFrame) -> float:
    """From the first begin to the last end."""
    return 0.0 if rows.is_empty() else float(rows["end_s"].to_numpy().max() - rows["begin_s"].to_numpy().min())


def storage_summary(facts: Facts) -> StorageSummary | None:
    """None where there is no storage node."""
    storage = facts.storage
    if storage is None:
        return None
    batches = facts.stages.filter(pl.col("stage") == "batch")
    if {"measure", "done"} <= facts.barriers.keys():  # between them one for each iteration
        window = facts.barriers["measure"].released_s, facts.barriers["done"].arrived_s
        batches = batches.filter(pl.col("end_s").is_between(*window))
    took_s = (batches["end_s"] - batches["begin_s"]).to_numpy().sum()
    num_batches = facts.num_workers * facts.iterations.filter(pl.col("phase") == "measured")["index"].n_unique()
    return StorageSummary(
        requested=storage.text,
        start_bytes=storage.start_bytes,
        start_least_s=storage.start_least_s,
        batch_bytes=storage.batch_bytes,
        batch_least_s=storage.batch_least_s,
        batch_read_s=float(took_s) / num_batches / facts.dilation if num_batches and not batches.is_empty() else None,
        num_checked=sum(each.expected_bytes is not None for each in facts.reading),
        waited_share=storage.waited_share,
    )
