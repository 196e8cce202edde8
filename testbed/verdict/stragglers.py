"""Who kept the others waiting: pure arithmetic on the iterations' frame."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from testbed.record.summary import WorkerSummary
from testbed.verdict.facts import Facts
from testbed.verdict.parts import worker_parts
from testbed.verdict.scaling import Alone


def worker_summaries(facts: Facts, alone: Mapping[int, Alone]) -> list[WorkerSummary]:
    """One for each worker over the measured iterations that all of them finished; none without such an iteration.

    An all-reduce cannot end before the last worker has handed over its last gradient. Whoever is last in an iteration
    has held up all the others by the time between the last but one and itself.
    """
    num_workers, dilation = facts.num_workers, facts.dilation
    measured = facts.iterations.filter(pl.col("phase") == "measured")
    whole = measured.filter(pl.len().over("index") == num_workers).sort("index", "rank")
    if whole.is_empty() or num_workers < 2:
        return []
    ready_s = whole["backward_compute_end_s"].to_numpy().reshape(-1, num_workers)
    last = ready_s.argmax(axis=1)
    ordered_s = np.sort(ready_s, axis=1)
    late_s = (ordered_s[:, -1] - ordered_s[:, -2]) / dilation
    parts = worker_parts(facts.iterations, num_workers=num_workers, in_step=facts.in_step)
    compute_s = parts["compute_s"].to_numpy().reshape(-1, num_workers) / dilation
    slowdown = whole["slowdown"].to_numpy().reshape(-1, num_workers)
    return [
        WorkerSummary(
            name=f"w{rank}",
            compute_time_s=float(compute_s[:, rank].mean()),
            compute_alone_s=alone[rank].computing_s if rank in alone else None,
            compute_contention=alone[rank].contention if rank in alone else None,
            slowdown_mean=float(slowdown[:, rank].mean()),
            last_share=float((last == rank).mean()),
            straggler_wait_s=float(np.where(last == rank, late_s, 0.0).mean()),
        )
        for rank in range(num_workers)
    ]
