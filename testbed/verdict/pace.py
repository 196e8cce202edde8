"""Did computing keep its pace? Pure arithmetic on the iterations' frame."""

from typing import Final

import polars as pl

from testbed.record.summary import Outcome, PaceSummary

OVERRUN_TOLERANCE: Final = 0.02
"""Of an iteration's computing, by how much a gradient may be later than it is due: what repeated runs may differ by. A
worker that is woken from its wait is some 0.1 ms late on an idle machine."""
OVERRUN_DEGRADED: Final = 0.1
"""Of the iterations, those in which some worker was later than that: more, and the median iteration may be one."""
OVERRUN_INVALID: Final = 0.1
"""Of an iteration's computing, by how much gradients were late in the mean: the experiment was of a slower device."""


def pace_summary(iterations: pl.DataFrame, *, dilation: float) -> PaceSummary | None:
    """Of the measured iterations, each as late as the worker that was latest; None where computing has no pace."""
    rows = iterations.filter((pl.col("phase") == "measured") & (pl.col("pace_s") > 0))
    if rows.is_empty():
        return None
    late = rows.group_by("index").agg(
        pl.col("overrun_s").max().alias("late_s"),
        (pl.col("overrun_s") / pl.col("pace_s")).max().alias("share"),
    )
    share = late["share"].to_numpy()
    return PaceSummary(
        pace_s=float(rows["pace_s"].to_numpy().mean()) / dilation,
        num_iterations=late.height,
        num_overrun=int((share > OVERRUN_TOLERANCE).sum()),
        overrun_share_mean=float(share.mean()),
        overrun_max_s=float(late["late_s"].to_numpy().max()) / dilation,
    )


def judge_pace(pace: PaceSummary | None) -> tuple[Outcome, str] | None:
    """What it makes of the run, and why; None where there is nothing to say."""
    if pace is None:
        return None
    mean = 100 * pace.overrun_share_mean
    if pace.overrun_share_mean > OVERRUN_INVALID:
        return "invalid", (
            f"gradients were ready {mean:.0f} % of the pace later than it says, in the mean (limit "
            f"{100 * OVERRUN_INVALID:.0f} %): this machine computes more slowly than the device that it should be; use "
            "a longer pace, smaller batches or fewer workers"
        )
    if pace.num_overrun > OVERRUN_DEGRADED * pace.num_iterations:
        return "degraded", (
            f"computing overran its pace by more than {100 * OVERRUN_TOLERANCE:.0f} % in {pace.num_overrun} of "
            f"{pace.num_iterations} iterations (limit {100 * OVERRUN_DEGRADED:.0f} %), by {mean:.1f} % in the mean: "
            "part of every iteration is this machine's; use a longer pace, smaller batches or fewer workers"
        )
    return None
