"""What a record has to say to a tracker: settings, tags, numbers of the whole run and of each iteration. Pure.

Names of numbers that do not stand begin with `invalid/`, so that no chart puts them beside others by accident.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from testbed.record.reader import Record
from testbed.record.summary import LinkSummary, Summary
from testbed.store.documents import flat, origin, resolved_spec
from testbed.verdict.changes import RateHistory
from testbed.verdict.parts import PARTS, measured_iterations

_PARTS: Final = {"exposed_s": "exposed_communication_s"}
"""Names that say more alone than in a table of parts."""


class Value(NamedTuple):
    """A number of one iteration."""

    step: int
    """The measured iteration, from 0."""
    at_s: float
    """When it was over: seconds since 1970."""
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """A run as trackers take it."""

    name: str
    """Of the spec: runs of one spec belong together."""
    run_name: str
    """Of the record's directory."""
    began_s: float
    """Seconds since 1970."""
    ended_s: float
    stands: bool
    parameters: Mapping[str, str | float | bool]
    """The resolved spec, by path."""
    tags: Mapping[str, str]
    totals: Mapping[str, float]
    """Of the whole run."""
    series: Mapping[str, Sequence[Value]]
    """Of the measured iterations."""


def tracked(record: Record) -> Tracked:
    """Everything that a tracker takes of a record."""
    summary = record.summary
    began_s = datetime.fromisoformat(summary.started_at).timestamp()
    stands = summary.stands
    prefix = "" if stands else "invalid/"
    frames = (record.iterations, record.links, record.machine)
    lasted_s = max((_last_s(frame) for frame in frames), default=0.0)
    return Tracked(
        name=summary.name,
        run_name=record.path.name,
        began_s=began_s,
        ended_s=began_s + lasted_s,
        stands=stands,
        parameters={path: _parameter(value) for path, value in flat(resolved_spec(record.path)).items()},
        tags=_tags(record),
        totals={f"{prefix}{name}": value for name, value in _totals(summary)},
        series={f"{prefix}{name}": values for name, values in _series(record, began_s).items() if values},
    )


def _last_s(frame: pl.DataFrame) -> float:
    column = "end_s" if "end_s" in frame.columns else "at_s"
    return float(frame[column].to_numpy().max()) if frame.height else 0.0


def _parameter(value: Any) -> str | float | bool:
    return value if isinstance(value, str | float | int | bool) else str(value)


def _tags(record: Record) -> dict[str, str]:
    summary, where = record.summary, origin(record.path)
    return {
        "testbed.outcome": summary.outcome,
        "testbed.reasons": "\n".join(summary.reasons),
        "testbed.notes": "\n".join(summary.notes),
        "testbed.run_id": summary.run_id,
        "testbed.record": str(record.path.absolute()),
        "testbed.spec_sha256": summary.spec_sha256,
        "testbed.setup": summary.setup,
        "testbed.commit": where.commit,
        "testbed.machine": where.machine,
    }


def _totals(summary: Summary) -> list[tuple[str, float]]:
    allreduce, loss, time_s = summary.allreduce, summary.loss, summary.iteration_time_s
    found: dict[str, float | None] = {
        "iteration_time_s": time_s.mean if time_s else None,
        "compute_time_s": summary.compute_time_s,
        "waiting_time_s": summary.waiting_time_s,
        "exposed_communication_s": summary.exposed_communication_s,
        "samples_per_s": summary.samples_per_s,
        "scaling_factor": summary.scaling_factor,
        "network_efficiency": summary.network_efficiency,
        "allreduce_time_s": allreduce.time_s if allreduce else None,
        "allreduce_bound_s": allreduce.bound_s if allreduce else None,
        "loss": loss.end if loss else None,
        "command_time_s": summary.command.time_s if summary.command else None,
        **{f"links/{link.from_}-{link.to}/utilization": link.utilization_mean for link in summary.links},
    }
    return [(f"run/{name}", value) for name, value in found.items() if value is not None]


def _series(record: Record, began_s: float) -> dict[str, list[Value]]:
    rows = measured_iterations(record.iterations, record.summary)
    columns = {"loss": "loss", "time_s": "time_s", **{part: _PARTS.get(part, part) for part in PARTS}}
    found = {f"iteration/{name}": _values(rows, rows[column], began_s) for column, name in columns.items()}
    for link in record.summary.links if rows.height and record.links.height else ():
        if link.utilization_mean is not None:  # it is shaped
            shares = pl.Series(_utilization(record, link, rows))
            found[f"links/{link.from_}-{link.to}/utilization"] = _values(rows, shares, began_s)
    return found


def _values(rows: pl.DataFrame, column: pl.Series, began_s: float) -> list[Value]:
    """Those that are numbers: a loss that has diverged is none."""
    return [
        Value(step, began_s + end_s, float(value))
        for step, end_s, value in zip(rows["index"], rows["end_s"], column, strict=True)
        if value is not None and np.isfinite(value)
    ]


def _utilization(record: Record, link: LinkSummary, rows: pl.DataFrame) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Of each iteration, from its start to the next one's: what the direction carried over what it could have.

    Counters were read ten times a second (metrics.interval); between two readings the rate is taken to be even, so that
    iterations that are shorter share what was read.
    """
    mine = (pl.col("link") == link.name) & (pl.col("node") == link.from_)
    samples = record.links.filter(mine).sort("at_s")
    edges_s = np.append(rows["start_s"].to_numpy(), rows["end_s"][-1])
    counted = np.interp(edges_s, samples["at_s"].to_numpy(), samples["class_bytes"].to_numpy())
    history = RateHistory(record.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
    could_bits = history.bits(edges_s[:-1], edges_s[1:])
    return np.asarray(record.summary.dilation * 8 * np.diff(counted) / could_bits, dtype=np.float64)
