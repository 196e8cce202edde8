"""What the recorder keeps of the borders between phases; the rest is in tests/end_to_end/."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest

from testbed.control import control_pb2 as messages
from testbed.experiment.experiment import validate
from testbed.measure.observations import Observations
from testbed.metrics.exporter import IterationTimes
from testbed.plan.plan import make_plan
from testbed.record.writer import RecordWriter
from testbed.runner.recorder import Recorder
from testbed.verdict.parts import worker_parts
from tests.rows import iterations, one_is_slow


class FollowedLinks:
    begun = True
    late_s = 0.0

    def forget_late(self) -> None:
        self.late_s = 0.0

    def check(self) -> None:
        """Nothing has failed."""


class Observed:
    """An exporter that adds up what it is given."""

    def __init__(self) -> None:
        self.parts_s: dict[str, Counter[str]] = {}

    def note_iteration(self, worker: str) -> None:
        """Not looked at."""

    def observe_iteration(self, worker: str, times: IterationTimes, *, loss: float) -> None:
        self.parts_s.setdefault(worker, Counter()).update(times.parts_s)


class Screen:
    def phase(self, name: str) -> None:
        """Not looked at."""

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """Not looked at."""


def recorder_of(
    tmp_path: Path, *, links: FollowedLinks, observations: Observations, exporter: Observed | None = None, **keys: Any
) -> Recorder:
    return Recorder(
        plan=make_plan(validate({"name": "x", "workers": 2, **keys}), works=lambda name: name == "nfqueue"),
        epoch_s=1.0,
        writer=RecordWriter(tmp_path),
        exporter=cast("Any", exporter),
        progress=cast("Any", Screen()),
        links=cast("Any", links),
        observations=observations,
        workers=dict,
        processes=dict,
        hosts=dict,
    )


def test_prometheus_gets_the_parts_that_the_record_has(tmp_path: Path) -> None:
    """The first worker waits in its second forward pass for what the second had not computed yet."""
    exporter = Observed()
    recorder = recorder_of(
        tmp_path,
        links=FollowedLinks(),
        observations=Observations(),
        exporter=exporter,
        workload="synthetic",
        dilation=2,
    )
    rows = one_is_slow()
    for row in rows:
        reported = {name: value for name, value in row.items() if name != "rank"}
        recorder.on_iteration(int(str(row["rank"])), messages.Iteration(**cast("Any", reported)))
    recorded = worker_parts(iterations(*rows), num_workers=2)
    for rank in range(2):
        found = exporter.parts_s[f"w{rank}"]
        mine = recorded.filter(pl.col("rank") == rank)
        assert found["waiting"] == pytest.approx(mine["waiting_s"].sum() / 2), "virtual"
        assert found["exposed_communication"] == pytest.approx(mine["exposed_s"].sum() / 2)
        assert found["other"] == pytest.approx(mine["other_s"].sum() / 2)
        assert found.total() == pytest.approx(mine["time_s"].sum() / 2)


def test_changes_are_late_for_the_iterations_in_which_they_were(tmp_path: Path) -> None:
    """What was caught up with in warm-up, and what comes late while processes end, decides no number."""
    links, observations = FollowedLinks(), Observations()
    recorder = recorder_of(tmp_path, links=links, observations=observations)
    links.late_s = 1.0
    recorder.on_barrier("measure")
    assert links.late_s == 0.0
    links.late_s = 0.01
    recorder.on_barrier("done")
    links.late_s = 2.0
    assert observations.changes_late_s == 0.01
