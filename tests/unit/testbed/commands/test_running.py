"""Lines of `run`, `exec` and `sweep`: what is refused before anything is deployed, and exit codes."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from testbed.calibration.cache import Mode
from testbed.cli import app
from testbed.commands.running import runner
from testbed.errors import Interrupted, RunFailedError, SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.hosts import fork_client
from testbed.record.summary import Summary
from testbed.runner import run as runs
from testbed.runner.user_command import CommandFailedError

QUICKSTART = "experiments/quickstart.yaml"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", QUICKSTART, "--set", "link.rate=fast"], "link.rate: 'fast' is not a rate"),
        (["run", QUICKSTART, "--set", "workload={kind: allreduce}"], "workload: allreduce has no iterations"),
        (["run", QUICKSTART, "--set", "sweep.seed=[1, 2]"], "`sweep` is about several runs of one spec: use `testbed"),
        (["run", QUICKSTART, "--runtime", "jail"], "runtime: "),
        (["exec", "--link", "1gbit,", "--", "true"], "--link 1gbit,: write RATE"),
        (["exec", "--backend", "nccl", "--", "true"], "workload.backend: "),
        (["sweep", QUICKSTART, "--live", "--dry-run"], "--live: --dry-run runs nothing that a page could show"),
        (["sweep", QUICKSTART], "nothing varies; list values under `sweep`"),
        (
            ["sweep", QUICKSTART, "--set", "sweep.seed=[1, 2]", "--target-loss", "nan"],
            "--target-loss is nan; it is a number",
        ),
        (["sweep", QUICKSTART, "--set", "sweep.link.rate=[1gbit, fast]"], "link.rate: 'fast' is not a rate"),
        (
            ["sweep", QUICKSTART, "--set", "sweep.seed=[1, 2]", "--set", "where.workers=2"],
            "where.workers: it does not va",
        ),
    ],
)
def test_what_is_wrong_names_its_field(argv: list[str], words: str) -> None:
    done = CliRunner().invoke(app, argv)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)


@pytest.mark.parametrize(
    "argv",
    [
        ["run"],
        ["exec"],
        ["sweep", QUICKSTART, "--jsn"],
        ["sweep", QUICKSTART, "--reuse", "some"],
        ["sweep", QUICKSTART, "--retries", "-1"],
        ["reproduce", "all", "--reuse", "some"],
    ],
)
def test_a_wrong_line_exits_with_2(argv: list[str]) -> None:
    assert CliRunner().invoke(app, argv).exit_code == 2


@pytest.mark.parametrize(("line", "code"), [(["run", "x.yaml"], 1), (["exec", "--", "true"], 139)])
def test_the_status_of_a_command_that_failed_is_that_of_exec_alone(
    line: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: Summary
) -> None:
    """Whoever starts `testbed run` reads 2 to 4 as its own, and more than 128 as that of a run which was ended."""

    def crashes(*_: object, **__: object) -> Summary:
        failed = summary.model_copy(update={"outcome": "failed", "reasons": ["w0 crashed"]})
        raise runs.RunStoppedError(failed) from CommandFailedError("w0 crashed", exit_code=139)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "run_experiment", crashes)
    monkeypatch.setattr(fork_client, "preload", lambda _: None)
    Path("x.yaml").write_text("name: x\nworkload: {kind: command, argv: ['true']}\n")
    done = CliRunner().invoke(app, line)
    assert isinstance(done.exception, RunFailedError)
    assert (str(done.exception), done.exception.exit_code) == ("w0 crashed", code)


def test_links_that_a_line_names_keep_what_the_spec_says_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: Summary
) -> None:
    started: list[Experiment] = []

    def starts(experiment: Experiment, **_: object) -> Summary:
        started.append(experiment)
        return summary

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "run_experiment", starts)
    monkeypatch.setattr(fork_client, "preload", lambda _: None)
    Path("x.yaml").write_text("name: x\nlink: {rate: 1gbit, delay: 5ms, loss: 0.01, queue: 200kB}\n")
    CliRunner().invoke(app, ["exec", "--spec", "x.yaml", "--link", "50mbit", "--", "true"], catch_exceptions=False)
    CliRunner().invoke(app, ["exec", "--link", "50mbit,1ms", "--", "true"], catch_exceptions=False)
    both, alone = (each.link for each in started)
    assert (both.rate_bps, both.delay_s, both.loss, both.queue_bytes) == (5e7, 0.005, 0.01, 200_000)
    assert (alone.rate_bps, alone.delay_s, alone.loss) == (5e7, 0.001, 0)


def test_one_of_several_runs_that_ends_early_is_no_traceback_and_a_signal_ends_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: Summary
) -> None:
    cause: BaseException

    def stops(*_: object, **__: object) -> Summary:
        raise runs.RunStoppedError(summary.model_copy(update={"outcome": "failed", "reasons": ["w0 died"]})) from cause

    monkeypatch.setattr(runs, "run_experiment", stops)
    run_one = runner(Console(quiet=True), output=tmp_path, calibration_mode=Mode.CLASS)
    cause = RunFailedError("w0 died")
    assert run_one(validate({"name": "x"})).outcome == "failed"
    cause = Interrupted()
    with pytest.raises(Interrupted):
        run_one(validate({"name": "x"}))
