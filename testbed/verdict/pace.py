"""Did computing keep its pace? Pure arithmetic on the iterations' frame."""

import polars as pl

from testbed.record.summary import PaceSummary
from testbed.verdict.thresholds import OVERRUN_TOLERANCE


def overrun_shares(iterations: pl.DataFrame, phase: str) -> dict[int, float]:
    """By rank: by how much of its pace computing was late in the mean iteration of a phase; 0 without a pace."""
    share = pl.when(pl.col("pace_s") > 0).then(pl.col("overrun_s") / pl.col("pace_s")).otherwise(0.0)
    rows = iterations.filter(pl.col("phase") == phase).group_by("rank").agg(share.mean().alias("share"))
    return {int(rank): float(value) for rank, value in rows.iter_rows()}


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
    together = overrun_shares(iterations, "compute_only")
    return PaceSummary(
        pace_s=float(rows["pace_s"].to_numpy().mean()) / dilation,
        num_iterations=late.height,
        num_overrun=int((share > OVERRUN_TOLERANCE).sum()),
        overrun_share_mean=float(share.mean()),
        overrun_max_s=float(late["late_s"].to_numpy().max()) / dilation,
        compute_only_overrun_share=max(together.values(), default=None),
    )
