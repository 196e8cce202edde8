"""A run of all benchmarks as a page of Markdown: every row that was measured, and what could not be."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from testbed.benchmarks.targets import Row
from testbed.errors import SpecError

_INTRODUCTION = """# Measured

Every row of `make bench`, whether it holds or not, and every ratio side by side in one run; this page is made by
`testbed bench page`. Bounds and ratios: [definitions](definitions.md). How `advise` and `predict` do:
[predictions](predictions.md). What the processor spends its time on: [processor time](processor_time.md).
"""


def read_rows(file: Path) -> dict[str, Any]:
    """What `testbed bench all --output FILE` wrote. Raises SpecError."""
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if document["schema_version"] == 2 and document["rows"] and document["environment"]:
            return document
    except OSError as failure:
        raise SpecError(f"{file}: {failure.strerror}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise SpecError(f"{file}: not written by `testbed bench all --output FILE`, or not to its end")


def measured_page(document: Mapping[str, Any]) -> str:
    """The page of such a document."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    environment = document["environment"]
    yield _INTRODUCTION
    memory_gb = environment["memory_bytes"] / 1e9
    yield f"{environment['num_cores']} cores, {environment['cpu']}, {memory_gb:.0f} GB, Linux {environment['kernel']};"
    yield f"commit {environment['commit']}."
    for part, rows in groupby(document["rows"], key=lambda row: row["part"]):
        yield f"\n## {part[0].upper()}{part[1:]}"
        yield from _table(list(rows))
    if document["failures"]:
        yield "\n## Not measured"
        yield from (f"- {what}: {why}" for what, why in document["failures"].items())


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| | measured | target | |"
    yield "|---|---:|---:|---|"
    degraded: dict[str, None] = {}
    for row in rows:
        target, remarks = "", list[str]()
        if row["target"] is not None:
            target = f"{'≥' if row['at_least'] else '≤'} {row['target']:g}"
            remarks += [] if row["holds"] else ["missed"]
        if row.get("degraded"):
            remarks.append("degraded")
            degraded |= dict.fromkeys(row["degraded"])
        yield f"| {row['what'].replace('|', '/')} | {row['value']:.4g} | {target} | {', '.join(remarks)} |"
    if degraded:
        yield "\nRuns that are degraded, whose numbers stand within what the reason says:\n"
        yield from (f"- {run}" for run in degraded)
