"""The same small experiment as fast as it is and four times slower.

How exactly both agree is for `testbed validate-dilation` on an idle machine; here every quantity of the run, measured
on the wall, must be the spec's virtual one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.experiment.experiment import validate
from testbed.record.reader import Record, load
from testbed.record.summary import LinkSummary
from testbed.report.terminal.summary import LiveProgress
from testbed.runner.run import run_experiment
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]

SLOWER: Final = 4
DELAY_S: Final = 2e-3
CHANGED_AT_S: Final = 0.5
SPEC: Final[dict[str, Any]] = {
    "name": "dilated",
    "workers": 2,
    "link": {"rate": "200mbit", "delay": "2ms"},
    "channel": {"kind": "tcp", "congestion": "reno"},
    "workload": {
        "kind": "synthetic",
        "layers": ["512KiB"] * 4,
        "forward": "50ms",
        "backward": "100ms",
        "warmup": 2,
        "compute_only": 3,
        "iterations": 6,
    },
    "hosts": {"x0": {"at": "s0"}, "x1": {"at": "s0"}},
    "background": [{"kind": "constant", "from": "x0", "to": "x1", "rate": "20mbit", "start": "100ms"}],
    "changes": [{"at": "500ms", "link": "x1-s0", "rate": "100mbit"}],
    "metrics": {"port": None},
}


def ran(dilation: int, output: Path, spec: Mapping[str, Any] = SPEC) -> Record:
    progress = LiveProgress(Console(quiet=True), enabled=False)
    experiment = validate({**spec, "dilation": dilation})
    return load(Path(run_experiment(experiment, output=output, progress=progress, calibration_mode=Mode.CLASS).record))


def link_of(record: Record, sender: str) -> LinkSummary:
    return next(link for link in record.summary.links if link.from_ == sender)


@pytest.mark.slow
def test_the_answer_is_the_same_in_slower_time(tmp_path: Path) -> None:
    records = {dilation: ran(dilation, tmp_path / str(dilation)) for dilation in (1, SLOWER)}
    fast, slow = (record.summary for record in records.values())
    assert (fast.dilation, slow.dilation) == (1, SLOWER)
    for record in records.values():
        summary = record.summary
        assert_no_fault_of_the_links(summary.outcome, summary.reasons)
        # Computing is 150 ms however slow time runs: stretched once, and not twice or never.
        assert summary.compute_only_time_s == pytest.approx(0.15, rel=0.3)
        link = link_of(record, "w0")
        assert link.rate_bps == 200e6
        assert link.measured_rate_bps == pytest.approx(200e6, rel=0.02)
        assert link.measured_delay_s == pytest.approx(DELAY_S, rel=0.25)
        assert link.bytes == pytest.approx(link.expected_bytes, rel=0.02)
        (flow,) = summary.background
        assert flow.sent_bps == pytest.approx(20e6, rel=0.1)
        (change,) = summary.changes
        iterations = record.iterations.filter(record.iterations["phase"] == "warmup")
        measured = record.iterations.filter(record.iterations["phase"] == "measured")
        warm_up_s = (measured["start_s"].min() - iterations["start_s"].min()) / summary.dilation
        assert change.at_s + warm_up_s == pytest.approx(CHANGED_AT_S, abs=0.15), "virtual, as the spec says it"
        assert set(record.links.filter(record.links["node"] == "w0")["rate_bps"]) == {200e6}
    # A host's own costs and other load count less in slower time, and never more; a bound holds in any. A time
    # that nobody had multiplied, or twice, would be wrong by a factor of four.
    assert fast.allreduce is not None
    assert slow.allreduce is not None
    assert slow.allreduce.bound_s == fast.allreduce.bound_s
    assert 0.97 * slow.allreduce.bound_s <= slow.allreduce.time_s <= 1.1 * fast.allreduce.time_s
    assert fast.iteration_time_s is not None
    assert slow.iteration_time_s is not None
    assert 0.15 <= slow.iteration_time_s.median <= 1.1 * fast.iteration_time_s.median
    assert any("time ran 4 times slower" in note for note in slow.notes)


def test_hosts_cost_as_much_in_slower_time_where_that_is_requested(tmp_path: Path) -> None:
    """Two workers with a tenth of a core each need longer for an exchange than their links, by the same in any time;
    with a quota that did not follow the dilation it would be twice or half of that."""
    keys = {
        "name": "costly",
        "workers": 2,
        "link": {"rate": "5gbit"},
        "workload": {**SPEC["workload"], "layers": ["8MiB"] * 2, "iterations": 6},
        "fusion": "none",
        "hosts": {"w*": {"cpu": 0.1}},
        "host_cost": "real",
        "metrics": {"port": None},
    }
    took = {}
    for dilation in (2, SLOWER):
        summary = ran(dilation, tmp_path / str(dilation), keys).summary
        assert_no_fault_of_the_links(summary.outcome, summary.reasons)
        assert any("w0 was held to 0.1 cores as requested" in note for note in summary.notes)
        assert summary.allreduce is not None
        took[dilation] = summary.allreduce.time_s / summary.allreduce.bound_s
    assert took[2] > 1.4
    assert 0.6 < took[SLOWER] / took[2] < 1.6
