"""Scaling factor and network efficiency, and when the first of them means what its name says. Pure.

    scaling factor      T_n / (n T_1), with T the samples per second of n workers, and of one alone; every worker has
                        the same batch however many there are (weak scaling)
    network efficiency  the same workers on the same cores without communication, over the iteration

docs/definitions.md has both with their reasons.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from testbed.record.summary import PaceSummary
from testbed.system.intervals import Floats
from testbed.verdict.pace import overrun_shares
from testbed.verdict.parts import worker_parts
from testbed.verdict.thresholds import ALONE_ITERATIONS, CONTENTION_TOLERANCE, OVERRUN_TOLERANCE


class Alone(NamedTuple):
    """One worker by itself, and beside the others; virtual seconds."""

    num_iterations: int
    """That it computed alone."""
    overrun_share: float
    """By how much of its pace it was late in the mean of these; 0 where it has none."""
    iteration_s: float
    """Alone, mean, with data and bookkeeping; computing as much slowed down as in the measured iterations. A few
    iterations alone draw other slowdowns than many measured ones do, and the quotient would be theirs."""
    computing_s: float
    """Forward, backward and optimizer alone: mean, with the slowdowns that were drawn then."""
    contention: float | None
    """The same in the measured iterations over that, slowdowns taken out; None: none was measured."""


class Scaling(NamedTuple):
    """What a run's headline rests on."""

    workers: Mapping[int, Alone]
    """By rank."""
    alone_s: float | None
    """Harmonic mean over workers of their iteration alone: n workers that do not need each other make n / alone_s
    iterations a second."""
    contention: float | None
    """Of the worker where it differs most from 1."""
    factor: float | None
    missing: str | None
    """Why there is no factor; None where there is one, and where nothing was measured."""


def scaling(iterations: pl.DataFrame, *, num_workers: int, dilation: float, iteration_s: float | None) -> Scaling:
    """Of ITERATION_SCHEMA, given the mean measured iteration (virtual); of workers that do not wait for each other, the
    harmonic mean of theirs."""
    workers = _alone(iterations, num_workers=num_workers, dilation=dilation)
    whole = len(workers) == num_workers
    alone_s = num_workers / sum(1 / each.iteration_s for each in workers.values()) if whole else None
    known = {rank: each.contention for rank, each in workers.items() if each.contention is not None}
    worst = max(known, key=lambda rank: abs(known[rank] - 1), default=None)
    contention = None if worst is None else known[worst]
    if iteration_s is None:
        return Scaling(workers, alone_s, contention, None, None)
    missing = _missing(workers, worst, contention)
    factor = alone_s / iteration_s if alone_s is not None and missing is None else None
    return Scaling(workers, alone_s, contention, factor, missing)


def rests_on_compute_only(factor: float | None, pace: PaceSummary | None) -> bool:
    """Whether what a run says of the network's cost rests on the time in which all workers computed at once, and on who
    had the cores then: not where there is a scaling factor and computing kept its pace then."""
    if factor is None or pace is None or pace.compute_only_overrun_share is None:
        return True
    return pace.compute_only_overrun_share > OVERRUN_TOLERANCE


def _missing(workers: Mapping[int, Alone], worst: int | None, contention: float | None) -> str | None:
    num_alone = sum(each.num_iterations for each in workers.values())
    if worst is None or contention is None:
        return "no worker computed alone"
    if num_alone < ALONE_ITERATIONS:
        return (
            f"only {num_alone} iterations were computed alone, at least {ALONE_ITERATIONS} are needed: raise "
            "workload.compute_only"
        )
    late = max(workers, key=lambda rank: workers[rank].overrun_share)
    if (share := workers[late].overrun_share) > OVERRUN_TOLERANCE:
        return (
            f"computing without communication was {100 * share:.0f} % later than its pace on w{late}: the cores "
            f"decide, not the network (limit {100 * OVERRUN_TOLERANCE:.0f} %)"
        )
    if abs(contention - 1) > CONTENTION_TOLERANCE:
        longer = "longer" if contention > 1 else "shorter"
        return (
            f"computing took {100 * abs(contention - 1):.0f} % {longer} in the run than alone on w{worst}: the cores "
            f"decide, not the network (limit {100 * CONTENTION_TOLERANCE:.0f} %)"
        )
    return None


def _alone(iterations: pl.DataFrame, *, num_workers: int, dilation: float) -> dict[int, Alone]:
    phase = _phase_alone(iterations)
    alone = worker_parts(iterations, num_workers=num_workers, phase=phase, ends_together=False)
    overruns = overrun_shares(iterations, phase)
    beside = _computing(worker_parts(iterations, num_workers=num_workers, ends_together=False))
    base = _computing(alone)
    slowdowns = _slowdowns(iterations)
    found = {}
    for (rank,), rows in alone.group_by("rank"):
        number = int(str(rank))
        # Waiting and exposed are nothing here but the clock's readings between two lines.
        computing_s = (rows["compute_s"] + rows["optimizer_s"]).to_numpy().mean()
        found[number] = Alone(
            num_iterations=rows.height,
            overrun_share=overruns[number],
            iteration_s=float(_times_s(rows, slowdowns.get(number, rows["slowdown"].to_numpy())).mean()) / dilation,
            computing_s=float(computing_s) / dilation,
            contention=beside[number] / base[number] if number in beside and base[number] > 0 else None,
        )
    return dict(sorted(found.items()))


def _phase_alone(iterations: pl.DataFrame) -> str:
    """In which a worker computes as it would alone: one after the other, or, where computing is replayed, all at once,
    since time that passes takes nothing from anybody."""
    alone = iterations.filter(pl.col("phase") == "compute_alone")
    together = iterations.filter(pl.col("phase") == "compute_only")
    paced = not together.is_empty() and (together["pace_s"] > 0).all()
    return "compute_only" if alone.is_empty() and paced else "compute_alone"


def _computing(parts: pl.DataFrame) -> dict[int, float]:
    """By rank, as it would have taken without a slowdown: mean."""
    computing = (pl.col("compute_s") + pl.col("optimizer_s")) / pl.col("slowdown")
    return {int(rank): float(value) for rank, value in parts.group_by("rank").agg(computing.mean()).iter_rows()}


def _slowdowns(iterations: pl.DataFrame) -> dict[int, Floats]:
    """By rank, those of the measured iterations in their order."""
    rows = iterations.filter(pl.col("phase") == "measured").sort("rank", "index")
    return {int(str(rank)): each["slowdown"].to_numpy() for (rank,), each in rows.group_by("rank", maintain_order=True)}


def _times_s(rows: pl.DataFrame, slowdowns: Floats) -> Floats:
    """How long one worker's iterations would have taken (the rows of the result) with each of these slowdowns (its
    columns) instead of its own: computing in proportion, all else the same."""
    computing_s = (rows["compute_s"] + rows["optimizer_s"]).to_numpy()
    other_s = rows["time_s"].to_numpy() - computing_s
    unslowed_s = computing_s / rows["slowdown"].to_numpy()
    return np.asarray(other_s[:, None] + unslowed_s[:, None] * slowdowns[None, :])


def compute_only_time_s(
    iterations: pl.DataFrame, *, num_workers: int, dilation: float, every: int | None = 1
) -> float | None:
    """Mean iteration of the workers computing at the same time without communicating, in virtual seconds; None without
    such a phase.

    Workers that exchange after `every` so many iterations would wait for the slowest then if communication took no
    time, so these count as long together as the slowest worker's, from that worker's own start: nothing keeps them in
    step here, and their drift apart is not communication. Of those that never wait (None) it is the mean over workers.
    Each iteration is as much slowed down as in every measured iteration
    in turn, not as was drawn in the few without communication.
    """
    parts = worker_parts(iterations, num_workers=num_workers, phase="compute_only", ends_together=False)
    if parts.is_empty():
        return None
    slowdowns = _slowdowns(iterations)
    times_s = [
        _times_s(rows.sort("index"), slowdowns.get(int(str(rank)), rows["slowdown"].to_numpy()))
        for (rank,), rows in parts.group_by("rank", maintain_order=True)
    ]
    num_rows = min(len(each) for each in times_s)
    num_measured = min(each.shape[1] for each in times_s)
    together_s = np.stack([each[:num_rows, :num_measured] for each in times_s])
    if every is None:
        return float(together_s.mean()) / dilation
    # A last round that is shorter counts only where it is the only one, as of the measured iterations.
    length = min(every, num_measured)
    num_rounds = num_measured // length
    columns = np.arange(num_rounds * length)
    rows = (np.arange(num_rows)[:, None] + columns) % num_rows  # one after the other, beginning with each
    rounds_s = together_s[:, rows, columns].reshape(len(times_s), num_rows, num_rounds, length).mean(axis=3)
    return float(rounds_s.max(axis=0).mean()) / dilation
