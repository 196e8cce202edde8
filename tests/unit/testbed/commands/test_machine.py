"""Cleaning one run: an id that never existed is an error, one whose run has gone is not."""

from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError
from testbed.system.run_state import new_run_id


def test_a_run_that_nobody_knows_is_an_error() -> None:
    done = CliRunner().invoke(app, ["clean", "--run-id", "nonesuch"])
    assert isinstance(done.exception, SpecError)
    assert "no run begins with 'nonesuch'" in str(done.exception)


def test_a_run_that_has_gone_has_nothing_left() -> None:
    run_id = new_run_id()
    done = CliRunner().invoke(app, ["clean", "--run-id", run_id, "--dry-run"])
    assert (done.exit_code, done.stdout) == (0, f"nothing is left of run {run_id}\n")
