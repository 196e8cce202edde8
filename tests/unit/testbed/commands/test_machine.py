"""Cleaning one run: an id that never existed is an error, one whose run has gone is not. A fit has a limit."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.benchmarks import fit as measuring
from testbed.cli import app
from testbed.errors import RunFailedError, SpecError
from testbed.machine import doctor
from testbed.system.run_state import new_run_id
from testbed.theory.fit import Fit
from testbed.theory.reach import Reach
from transports.collectives.costs import DEFAULT_COSTS


def test_a_run_that_nobody_knows_is_an_error() -> None:
    done = CliRunner().invoke(app, ["clean", "--run-id", "nonesuch"])
    assert isinstance(done.exception, SpecError)
    assert "no run begins with 'nonesuch'" in str(done.exception)


def test_a_run_that_has_gone_has_nothing_left() -> None:
    run_id = new_run_id()
    done = CliRunner().invoke(app, ["clean", "--run-id", run_id, "--dry-run"])
    assert (done.exit_code, done.stdout) == (0, f"nothing is left of run {run_id}\n")


@pytest.mark.parametrize(("limit", "fails"), [(None, False), ("0.13", False), ("0.11", True)])
def test_a_fit_that_is_further_off_than_its_limit_is_printed_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, fails: bool
) -> None:
    reach = Reach(num_workers=(2, 4), size_bytes=(1, 2), delay_s=(0.0, 0.0), rate_bps=(1e8, 1e9), channels=("tcp",))
    found = Fit(costs=DEFAULT_COSTS, residuals=(0.01, -0.12), reach=reach)
    monkeypatch.setattr(measuring, "measure_fit", lambda **_: (found, []))
    monkeypatch.setattr(doctor, "require_root", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["fit", "--json", *(["--limit", limit] if limit else [])])
    assert isinstance(done.exception, RunFailedError) == fails, done.exception
    assert json.loads(done.stdout)["largest_error"] == 0.12
