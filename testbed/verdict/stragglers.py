"""Who kept the others waiting: pure arithmetic on the iterations' frame."""

import numpy as np
import polars as pl

from testbed.record.summary import WorkerSummary


def worker_summaries(iterations: pl.DataFrame, *, num_workers: int, dilation: float) -> list[WorkerSummary]:
    """One for each worker over the measured iterations that all of them finished; none without such an iteration.

    An all-reduce cannot end before the last worker has handed over its last gradient. Whoever is last in an iteration
    has held up all the others by the time between the last but one and itself.
    """
    measured = iterations.filter(pl.col("phase") == "measured")
    whole = measured.filter(pl.len().over("index") == num_workers).sort("index", "rank")
    if whole.is_empty() or num_workers < 2:
        return []
    ready_s = whole["backward_compute_end_s"].to_numpy().reshape(-1, num_workers)
    last = ready_s.argmax(axis=1)
    ordered_s = np.sort(ready_s, axis=1)
    held_up_s = (ordered_s[:, -1] - ordered_s[:, -2]) / dilation
    compute = (
        pl.col("backward_compute_end_s") - pl.col("start_s") + pl.col("optimizer_end_s") - pl.col("backward_end_s")
    )
    compute -= pl.col("forward_stall_s")
    compute_s = whole.select(compute / dilation).to_numpy().reshape(-1, num_workers)
    slowdown = whole["slowdown"].to_numpy().reshape(-1, num_workers)
    return [
        WorkerSummary(
            name=f"w{rank}",
            compute_time_s=float(np.median(compute_s[:, rank])),
            slowdown_mean=float(slowdown[:, rank].mean()),
            last_share=float((last == rank).mean()),
            held_up_s=float(np.where(last == rank, held_up_s, 0.0).mean()),
        )
        for rank in range(num_workers)
    ]
