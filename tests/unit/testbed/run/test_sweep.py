"""A sweep runs what has no valid result yet, stops for nothing but an interruption, and keeps what is done."""

import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from testbed.errors import Interrupted, MissingRequirementError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import Sweep, expand
from testbed.record.summary import Checks, Outcome, Quantiles, Summary
from testbed.report.comparison.points import Comparison
from testbed.run.run import RunStoppedError
from testbed.run.sweep import exit_code, found, plan_points, require_points, run_sweep

RATES = ["100mbit", "200mbit", "1gbit"]


def sweep_of(**keys: Any) -> Sweep:
    return expand({"name": "x", "workers": 2, "sweep": {"link.rate": RATES}, **keys})


class Runs:
    """Stands for `run_experiment`: writes the summaries of records; `outcomes` by rate, valid if not named."""

    def __init__(self, output: Path, outcomes: Mapping[float, Outcome | type[BaseException]] | None = None) -> None:
        self.output = output
        self.outcomes = outcomes or {}
        self.rates: list[float] = []

    def __call__(self, experiment: Experiment) -> Summary:
        rate_bps = experiment.link.rate_bps
        self.rates.append(rate_bps)
        outcome = self.outcomes.get(rate_bps, "valid")
        if not isinstance(outcome, str):
            raise RunStoppedError(self.write(experiment, "failed")) from outcome("SIGINT")
        summary = self.write(experiment, outcome)
        if outcome == "failed":
            raise RunStoppedError(summary)
        return summary

    def write(self, experiment: Experiment, outcome: Outcome) -> Summary:
        directory = self.output / f"{experiment.name}-{experiment.sha256()[:8]}-{len(self.rates)}"
        time_s = 1e8 / experiment.link.rate_bps
        summary = Summary(
            name=experiment.name,
            run_id=str(len(self.rates)),
            spec_sha256=experiment.sha256(),
            started_at=f"2026-11-21T02:00:{len(self.rates):02}+00:00",
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
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "summary.json").write_text(json.dumps(summary.model_dump(mode="json", by_alias=True)))
        return summary


def execute(
    sweep: Sweep, runs: Runs, *, force: bool = False, now_s: Callable[[], float] = lambda: 0.0
) -> tuple[Comparison, str]:
    text = StringIO()
    comparison = found(sweep, plan_points(sweep), output=runs.output, force=force)
    console = Console(file=text, width=100)
    experiments = [point.experiment for point in sweep.points]
    return run_sweep(comparison, experiments, run=runs, console=console, now_s=now_s), text.getvalue()


def test_every_point_runs_in_order_and_says_which_of_how_many_it_is(tmp_path: Path) -> None:
    runs, clock = Runs(tmp_path), iter(range(0, 1000, 30))
    comparison, text = execute(sweep_of(), runs, now_s=lambda: next(clock))
    assert runs.rates == [1e8, 2e8, 1e9]
    assert "[1/3] link.rate=100mbit" in text
    assert "[2/3] link.rate=200mbit   about" in text
    assert [point.outcome for point in comparison.points] == ["valid"] * 3
    assert exit_code(comparison) == 0
    assert pl.read_csv(comparison.directory / "sweep.csv")["iteration_time_s"].to_list() == [1.0, 0.5, 0.1]
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert [Path(point["runs"][0]["record"]).is_dir() for point in written["points"]] == [True] * 3


def test_a_valid_result_is_not_repeated_unless_forced(tmp_path: Path) -> None:
    execute(sweep_of(), Runs(tmp_path))
    again = Runs(tmp_path)
    comparison, text = execute(sweep_of(), again)
    assert (again.rates, "3 runs with a valid result skipped" in text) == ([], True)
    assert comparison.frame()["iteration_time_s"].to_list() == [1.0, 0.5, 0.1]
    forced = Runs(tmp_path)
    execute(sweep_of(), forced, force=True)
    assert len(forced.rates) == 3


def test_a_point_that_fails_stops_no_other_and_runs_again_next_time(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {1e8: "failed", 2e8: "invalid"})
    comparison, _ = execute(sweep_of(), runs)
    assert [point.outcome for point in comparison.points] == ["failed", "invalid", "valid"]
    assert exit_code(comparison) == 1
    assert comparison.frame()["iteration_time_s"].to_list() == [None, None, 0.1]
    again = Runs(tmp_path, {2e8: "invalid"})
    comparison, _ = execute(sweep_of(), again)
    assert (again.rates, exit_code(comparison)) == ([1e8, 2e8], 4)


def test_an_interruption_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    text = StringIO()
    sweep, runs = sweep_of(), Runs(tmp_path, {2e8: Interrupted})
    comparison = found(sweep, plan_points(sweep), output=tmp_path)
    with pytest.raises(Interrupted):
        run_sweep(comparison, [p.experiment for p in sweep.points], run=runs, console=Console(file=text, width=100))
    assert "1 of 3 runs valid and kept; the same command runs the others" in text.getvalue()
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert [point["outcome"] for point in written["points"]] == ["valid", "not run", "not run"]
    rest = Runs(tmp_path)
    execute(sweep, rest)
    assert rest.rates == [2e8, 1e9]


def test_repeat_asks_for_so_many_valid_runs_of_each_point(tmp_path: Path) -> None:
    execute(sweep_of(), Runs(tmp_path))
    more = Runs(tmp_path)
    more.rates.append(0.0)  # the numbers of the records go on
    comparison, _ = execute(sweep_of(repeat=2), more)
    assert more.rates[1:] == [1e8, 2e8, 1e9]
    assert [len(point.runs) for point in comparison.points] == [2, 2, 2]


def test_every_point_is_planned_before_the_first_runs() -> None:
    sweep = expand({"name": "x", "sweep": {"seed": [1, 2], "workers_per_host": [1, 4]}})
    with pytest.raises(SpecError, match=r"workers_per_host: 4 .*\[seed=1 workers_per_host=4 and 1 more points\]"):
        plan_points(sweep)


def test_what_a_workload_cannot_is_said_with_the_point() -> None:
    sweep = expand({"name": "x", "workers": 2, "sweep": {"workload": ["training", "allreduce"]}})
    with pytest.raises(SpecError, match=r"allreduce has no iterations.*\[workload=allreduce\]"):
        require_points(sweep, plan_points(sweep))


def test_what_is_missing_on_the_machine_is_said_with_the_point() -> None:
    sweep = expand({"name": "x", "sweep": {"channel.congestion": ["nonesuch"]}})
    with pytest.raises(MissingRequirementError, match=r"(?s)\[channel.congestion=nonesuch\]"):
        require_points(sweep, plan_points(sweep))
