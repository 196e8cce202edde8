"""When a worker of the `allreduce` workload reports what it has measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import testbed.worker.allreduce as module
from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.workloads.allreduce import AllReduce
from transports.bench.rows import Sample
from transports.collectives.network_info import NetworkInfo


class Control:
    """Remembers what is said to it."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def barrier(self, name: str) -> None:
        self.said.append(name)

    def report(self, event: Any) -> None:
        self.said.append(json.loads(event.result.json)["number"])


def test_a_report_is_not_under_way_while_a_short_operation_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took two cores a millisecond or two, half of an operation's own time: of short ones all are reported together,
    before a barrier that takes as long as the reports do."""
    control = Control()
    durations_s = {64 * 1024: (0.001, 0.001, 0.05, 0.001), 4 * 1024: (0.001, 0.001, 0.001, 0.001)}

    def timed(_: object, operands: Any, *, rest_s: float, **__: object) -> Iterator[Sample]:
        assert rest_s == pytest.approx(20_000 * 8 / 1e9)
        for number, duration_s in enumerate(durations_s[operands.size_bytes]):
            control.said.append("times")
            yield Sample(
                rank=0,
                stack="ring/tcp",
                size_bytes=operands.size_bytes,
                number=number,
                begun_s=0.0,
                duration_s=duration_s,
                cpu_s=0.0,
                error=0.0,
            )

    monkeypatch.setattr(module, "timed", timed)
    options = AllReduce.model_validate({"sizes": ["64KiB", "4KiB"], "stacks": []})
    configuration = SimpleNamespace(
        rank=0,
        num_workers=2,
        num_threads=1,
        seed=1,
        store_path=str(tmp_path / "store"),
        network_info=NetworkInfo(rate_bps=1e9, latency_s=0.0, burst_bytes=15_000, frame_bytes=5_000),
    )
    module.work(options, cast("WorkerConfiguration", configuration), cast("WorkerControl", control))
    said = control.said
    assert said[:8] == ["measure", "times", "times", "times", 0, 1, 2, "times"]
    assert said[8:] == [3, "reported", "times", "times", "times", "times", 0, 1, 2, 3, "reported", "done"]


def test_short_buffers_have_samples_of_their_own_number() -> None:
    options = AllReduce.model_validate({"sizes": ["1MiB", "256KiB"], "repeat": 3, "repeat_short": 8})
    assert [options.num_samples(size_bytes) for size_bytes in (1024 * 1024, 256 * 1024)] == [3, 8]
    assert options.num_iterations() == 8
    assert AllReduce.model_validate({"repeat": 3}).num_samples(4) == 3
