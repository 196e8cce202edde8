"""Who kept the others waiting: pure arithmetic on the iterations' frame."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from testbed.record.summary import WorkerSummary
from testbed.verdict.facts import COMPLETED, Facts
from testbed.verdict.parts import worker_parts
from testbed.verdict.scaling import Alone


def worker_summaries(facts: Facts, alone: Mapping[int, Alone]) -> list[WorkerSummary]:
    """One for each worker over the measured iterations that all of them finished; none without such an iteration.

    An exchange cannot end before the last worker has handed over its last gradient. Whoever is last in an iteration in
    which workers exchange has held up all the others by the time between the last but one and itself: with local SGD
    one in so many, among workers of which each ends an iteration by itself none.
    """
    num_workers, dilation = facts.num_workers, facts.dilation
    measured = facts.iterations.filter(pl.col("phase") == "measured")
    whole = measured.filter(pl.len().over("index") == num_workers).sort("index", "rank")
    if whole.is_empty() or num_workers < 2:
        return []
    ready_s = whole["backward_compute_end_s"].to_numpy().reshape(-1, num_workers)
    last = ready_s.argmax(axis=1)
    ordered_s = np.sort(ready_s, axis=1)
    meets = _meets(facts, whole["index"].to_numpy()[::num_workers])
    late_s = np.where(meets, ordered_s[:, -1] - ordered_s[:, -2], 0.0) / dilation
    parts = worker_parts(facts.iterations, num_workers=num_workers, ends_together=facts.ends_together)
    compute_s = parts["compute_s"].to_numpy().reshape(-1, num_workers) / dilation
    slowdown = whole["slowdown"].to_numpy().reshape(-1, num_workers)
    return [
        WorkerSummary(
            name=f"w{rank}",
            compute_time_s=float(compute_s[:, rank].mean()),
            compute_alone_s=alone[rank].computing_s if rank in alone else None,
            compute_contention=alone[rank].contention if rank in alone else None,
            slowdown_mean=float(slowdown[:, rank].mean()),
            last_share=float((last == rank)[meets].mean()) if meets.any() else 0.0,
            straggler_wait_s=float(np.where(last == rank, late_s, 0.0).mean()),
        )
        for rank in range(num_workers)
    ]


def _meets(facts: Facts, index: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """In which of these measured iterations, from the first to the last, workers wait for each other. A phase begins a
    round, and its last iteration ends one."""
    if not facts.ends_together:
        return np.zeros(len(index), dtype=bool)
    last = index.max() if facts.end == COMPLETED else -1
    return np.asarray(((index + 1) % (facts.exchange_every or 1) == 0) | (index == last))
