"""Lines of `run`, `exec` and `sweep`: what is refused before anything is deployed, and exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import RunFailedError, SpecError
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
