"""Lines of `run`, `exec` and `sweep` that are refused before anything is deployed."""

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError

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
