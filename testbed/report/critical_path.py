"""What an iteration waited for, step by step from its start to its end: the longest chain of causes. Pure.

Backwards from the worker that ended last: its optimizer, the bucket whose result it had last, and what let that bucket
begin. A bucket is in service until its slowest member is done; it moves on once the last worker has handed it over and
the bucket before it has gone through. Whichever was later is the cause, and a worker that handed over late computed
until then. Where one bucket follows another, both are on the path.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

_SAME_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the path; wall seconds, in the record's clock."""

    what: str
    """In words, with whoever does it."""
    begin_s: float
    end_s: float


def critical_path(iterations: pl.DataFrame, buckets: pl.DataFrame) -> list[Step]:
    """The steps of one iteration, without gaps, in order; `iterations` and `buckets` are its rows of all workers.

    Empty where nothing was exchanged, or where a forward pass waited for gradients of the iteration before: its causes
    lie there.
    """
    if iterations.is_empty() or buckets.is_empty() or bool((iterations["forward_stall_s"] > 0).any()):
        return []
    rows = {int(row["rank"]): row for row in iterations.iter_rows(named=True)}
    last = max(rows.values(), key=lambda row: row["end_s"])
    rank = int(last["rank"])
    steps = [
        Step(f"w{rank}: bookkeeping", last["optimizer_end_s"], last["end_s"]),
        Step(f"w{rank}: optimizer", last["backward_end_s"], last["optimizer_end_s"]),
    ]
    cause, at_s = _exchange(rank, last, buckets, steps)
    steps += _computing(rows[cause], at_s)
    return _merged([step for step in reversed(steps) if step.end_s - step.begin_s > _SAME_S])


def _exchange(rank: int, last: Mapping[str, Any], buckets: pl.DataFrame, steps: list[Step]) -> tuple[int, float]:
    """Add what was exchanged, backwards; returns who had computed before it, and until when."""
    # Counted within the iteration, as its plot does.
    number_of = {int(sequence): number for number, sequence in enumerate(buckets["sequence"].unique().sort())}
    own = buckets.filter(pl.col("rank") == rank).sort("done_s").to_dicts()
    handed = {
        int(sequence): max(zip(group["enqueued_s"], group["rank"], strict=True))
        for (sequence,), group in buckets.group_by("sequence")
    }
    at_s = float(last["backward_end_s"])
    if not own or own[-1]["done_s"] <= last["backward_compute_end_s"]:
        return rank, at_s  # all of it was hidden
    bucket = own[-1]
    if at_s > bucket["done_s"]:
        steps.append(Step(f"w{rank}: after the last bucket", bucket["done_s"], at_s))
        at_s = bucket["done_s"]
    while True:
        sequence = int(bucket["sequence"])
        (handed_s, by), number = handed[sequence], number_of[sequence]
        before = [each for each in own if each["done_s"] <= bucket["done_s"] and each is not bucket]
        previous = max(before, key=lambda each: float(each["done_s"]), default=None)
        if previous is None or previous["done_s"] <= handed_s:
            # The bucket before it had gone through when the last worker handed this one over.
            steps.append(Step(_bucket(number), min(handed_s, at_s), at_s))
            return int(by), min(handed_s, at_s)
        begin_s = min(previous["done_s"], at_s)
        steps.append(Step(_bucket(number), begin_s, at_s))
        own, bucket, at_s = before, previous, begin_s


def _bucket(number: int) -> str:
    return f"bucket {number} in service"


def _computing(row: Mapping[str, Any], until_s: float) -> Iterator[Step]:
    """What a worker did until then, backwards."""
    name = f"w{row['rank']}"
    parts = (
        ("waits", row["backward_compute_end_s"], row["backward_end_s"]),
        ("backward", row["forward_end_s"], row["backward_compute_end_s"]),
        ("forward", row["host_to_device_end_s"], row["forward_end_s"]),
        ("data", row["start_s"], row["host_to_device_end_s"]),
    )
    for what, begin_s, end_s in parts:
        yield Step(f"{name}: {what}", begin_s, max(begin_s, min(end_s, until_s)))


def _merged(steps: Sequence[Step]) -> list[Step]:
    """Buckets that follow each other as one step."""
    made: list[Step] = []
    first = ""
    for step in steps:
        if made and step.what.endswith(" in service") and made[-1].what.endswith(" in service"):
            number = step.what.split()[1]
            made[-1] = Step(f"buckets {first} to {number} in service", made[-1].begin_s, step.end_s)
            continue
        first = step.what.split()[1]
        made.append(step)
    return made
