"""What a sweep sees of runs, in milliseconds: records as `testbed run` leaves them, with nothing emulated behind them.

Started as a process of its own (:func:`sweep_until`), a sweep of such runs can be killed at any moment at which it
changes something on the disk.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import expand
from testbed.record.summary import ChangeSummary, Checks, Outcome, Quantiles, Summary
from testbed.record.writer import RecordWriter
from testbed.report import drawing
from testbed.runner.run import RunStoppedError
from testbed.runner.sweep import run_sweep
from testbed.runner.sweep_points import found, plan_points
from testbed.system import environment
from testbed.system.run_state import new_run_id

describe: Final = cache(environment.describe)
OutcomeOf = Callable[[Experiment, int], Outcome | type[BaseException]]
"""Of an experiment's run, by how many of its runs have come to their end before it."""
MANUAL_CHANGE: Final = ChangeSummary(
    at_s=0.5, links="w1 → s0", setting="rate", before="100mbit", after="10mbit", source="manual"
)


class CheapRuns:
    """Stands for `run_experiment`."""

    def __init__(
        self,
        output: Path,
        outcome: OutcomeOf = lambda *_: "valid",
        *,
        link_changes: Sequence[ChangeSummary] = (),
        **changes: Any,
    ) -> None:
        self.output = output
        self.outcome = outcome
        self.link_changes = list(link_changes)
        self.environment = {**describe(), **changes}
        self.rates: list[float] = []
        """Of the links of the experiments that were run, in their order."""

    def __call__(self, experiment: Experiment) -> Summary:
        self.rates.append(experiment.link.rate_bps)
        number = len(list(self.output.glob(f"{experiment.name}-{experiment.sha256()[:8]}-*/summary.json")))
        outcome = self.outcome(experiment, number)
        if not isinstance(outcome, str):
            raise RunStoppedError(self._record(experiment, "failed")) from outcome("SIGINT")
        summary = self._record(experiment, outcome)
        if outcome == "failed":
            raise RunStoppedError(summary)
        return summary

    def _record(self, experiment: Experiment, outcome: Outcome) -> Summary:
        run_id = new_run_id()
        writer = RecordWriter(self.output / f"{experiment.name}-{experiment.sha256()[:8]}-{run_id}")
        writer.write_spec(experiment.to_yaml())
        writer.write_environment(self.environment)
        summary = summary_of(experiment, outcome, run_id, self._now(), writer.directory)
        summary = summary.model_copy(update={"changes": self.link_changes})
        writer.finish(summary)
        return summary

    def _now(self) -> str:
        """A second after another for each run that has come to its end, all of them after the sweep has begun."""
        minutes, seconds = divmod(len(list(self.output.glob("*/summary.json"))), 60)
        return f"2100-01-01T00:{minutes:02}:{seconds:02}+00:00"


def summary_of(experiment: Experiment, outcome: Outcome, run_id: str, started_at: str, directory: Path) -> Summary:
    """Of a run that took as long as its links are slow."""
    time_s = 1e8 / experiment.link.rate_bps
    return Summary(
        name=experiment.name,
        run_id=run_id,
        spec_sha256=experiment.sha256(),
        started_at=started_at,
        epoch_s=0.0,
        outcome=outcome,
        reasons=[] if outcome == "valid" else ["because"],
        num_workers=2,
        num_iterations=3,
        dilation=1.0,
        iteration_time_s=Quantiles(mean=time_s, median=time_s, p10=0.9 * time_s, p90=1.1 * time_s),
        compute_time_s=0.01,
        exposed_communication_s=0.02,
        other_time_s=0.0,
        data_time_s=0.0,
        waiting_time_s=0.0,
        optimizer_time_s=0.0,
        compute_alone_time_s=0.01,
        compute_contention=1.0,
        network_efficiency=0.5,
        checked=Checks(num_directions=0, num_bytes=0, num_rates=0, num_rates_own=0, num_delays=0, not_checked=[]),
        compute_only_time_s=0.01,
        samples_per_s=100.0,
        scaling_factor=0.5,
        loss=None,
        parameters_sha256=None,
        workers=[],
        links=[],
        background=[],
        machine=None,
        allreduce=None,
        uss_bytes=[],
        overhead_s={},
        record=str(directory),
    )


@contextmanager
def blank_pictures() -> Iterator[None]:
    """Files of figures are written when they would be, with nothing in them: drawing takes most of the time of a sweep
    of cheap runs."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(drawing, "svg", lambda _: "")
        monkeypatch.setattr(drawing, "png", lambda _: b"")
        yield


OUTCOMES: Final[Mapping[float, Sequence[Outcome]]] = {
    1e8: ("valid", "degraded", "valid"),
    2e8: ("invalid", "valid", "degraded", "valid"),
    1e9: ("valid", "invalid", "invalid", "invalid", "degraded"),
}
"""By the links' rate, what becomes of an experiment's first run, its second one, ...: the same whatever happened in
between."""


def listed_outcome(experiment: Experiment, number: int) -> Outcome:
    """Of OUTCOMES; once more than there are would be too many."""
    return OUTCOMES[experiment.link.rate_bps][number]


def sweep_until(spec: dict[str, Any], output: Path, moment: int, retries: int, log: Path | None = None) -> None:
    """Run a sweep of cheap runs; SIGKILL ends this process before it changes the disk for the n-th time, counted
    from 0. In `log` is, at its end, what it has changed, a line for each time."""
    changes: list[str] = []

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in ("os.rename", "os.mkdir")) or str(output) not in str(arguments[0]):
            return
        if len(changes) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        changes.append(f"{event} {arguments[1] if event == 'os.rename' else arguments[0]}")

    swept = expand(spec)
    plans = plan_points(swept)
    comparison = found(swept, plans, output=output, num_retries=retries)
    sys.addaudithook(before)
    with blank_pictures():
        run_sweep(comparison, plans, run=CheapRuns(output, listed_outcome), console=Console(file=StringIO()))
    if log is not None:
        log.write_text("\n".join(changes))
