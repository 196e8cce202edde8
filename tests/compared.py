"""A point of a sweep, for tests of how sweeps look."""

from dataclasses import replace
from typing import Any

from testbed.record.summary import Summary
from testbed.report.comparison.points import ComparedPoint


def compared_point(settings: dict[str, Any], *runs: Summary, **changes: Any) -> ComparedPoint:
    """With these settings and runs; its bounds and what was predicted are made up."""
    point = ComparedPoint(
        settings=settings,
        spec_sha256="ab",
        bound_s=0.5,
        schedule_bound_s=0.5,
        predicted_s=0.6,
        num_requested=1,
        runs=runs,
    )
    return replace(point, **changes)
