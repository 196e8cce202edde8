"""Runs for the live page: plans as records have them, and rows as a run appends them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import Any

import polars as pl

from testbed.experiment.experiment import Experiment, validate
from testbed.live.messages import Opening
from testbed.live.translation import opening
from testbed.plan.plan import make_plan
from testbed.record.frames import BACKLOG_SCHEMA, CHANGE_SCHEMA
from testbed.record.reader import CHECKSUMS, Record, load
from tests.unit.testbed.conftest import Model, Scenario, make_record

Batch = tuple[float, str, list[dict[str, Any]]]
"""When it is appended, to which table, which rows."""


def experiment(**settings: Any) -> Experiment:
    workload = {"kind": "training", "pace": {"forward": "30ms", "backward": "80ms"}}
    return validate({"name": "quickstart", "workers": 4, "metrics": {"port": None}, "workload": workload, **settings})


def planned(given: Experiment) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(json.dumps(make_plan(given, works=lambda _: True).to_json()))
    return plan


def opened(**settings: Any) -> Opening:
    given = experiment(**settings)
    return opening(planned(given), given, run_id="261123t060000-abcdef", setup="star")


def changes() -> list[dict[str, Any]]:
    row = {"at_s": 4.0, "link": "w1-s0", "node": "w1", "to": "s0", "before": "100mbit", "after": "50mbit"}
    rate = row | {"setting": "rate", "rate_bps": 50e6, "source": "schedule"}
    down = row | {"at_s": 4.2, "setting": "carrier", "before": "up", "after": "down", "rate_bps": 50e6}
    return [rate, down | {"source": "manual"}]


def probes(model: Model) -> list[dict[str, Any]]:
    """One of each direction in turn, every third of a second."""
    rows = []
    for number in range(int(model.now_s * 3)):
        link, node, _ = model.directions()[number % len(model.directions())]
        due = 250_000.0
        rows.append(
            {"at_s": number / 3, "link": link, "node": node, "elapsed_s": 0.02, "backlog_bytes": 90_000}
            | {"sent_bytes": int(0.999 * due), "due_bytes": due}
        )
    return rows


def batches(model: Model) -> Iterator[Batch]:
    """What a run of it appends, in the order in which that happens: each table in its own rows' order."""

    def of(table: str, rows: list[dict[str, Any]], size: int, moment: str) -> Iterator[Batch]:
        reached_s = 0.0
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            reached_s = max(reached_s, float(some[-1][moment]))
            yield reached_s, table, some

    num_directions = len(model.directions())
    yield from merge(
        of("links", model.samples(), num_directions, "at_s"),
        of("iterations", model.iterations, 1, "end_s"),
        of("machine", model.machine(), 1, "at_s"),
        of("changes", changes(), 1, "at_s"),
        of("backlog", probes(model), 1, "at_s"),
        key=lambda batch: batch[0],
    )


def recorded(directory: Path, scenario: Scenario, **settings: Any) -> Record:
    """A record of a model's run, with a plan that was made of its spec."""
    given = experiment(workers=scenario.num_workers, dilation=scenario.dilation, **settings)
    make_record(directory, scenario, changes=pl.DataFrame(changes(), schema=CHANGE_SCHEMA))
    (directory / "plan.json").write_text(json.dumps(planned(given)))
    (directory / "spec.yaml").write_text(given.to_yaml())
    pl.DataFrame(probes(Model(scenario)), schema=BACKLOG_SCHEMA).write_parquet(directory / "backlog.parquet")
    (directory / CHECKSUMS).unlink()
    return load(directory)


def without(record: Record, **parts: Any) -> Record:
    """The record with other tables or documents."""
    return replace(record, **parts)
