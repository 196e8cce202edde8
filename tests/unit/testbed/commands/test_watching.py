"""`status` and `top`: which runs are alive, and what is said where there is none."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError
from testbed.record.status import RunStatus

NOW = datetime.now(UTC)


def alive(monkeypatch: pytest.MonkeyPatch, *run_ids: str) -> None:
    """These runs are alive; those that begin with `young` have not said anything yet."""

    def read_status(run_id: str) -> RunStatus | None:
        if run_id.startswith("young"):
            return None
        return RunStatus(
            run_id=run_id, name="quickstart", workload="training", num_workers=4, num_links=8, started_at=NOW,
            record="/results/a", phase="measured", phase_since=NOW, iteration=7, num_iterations=30,
        )  # fmt: skip

    def sockets(run_id: str) -> list[Path]:
        return [Path(f"/run/{run_id}/a0.sock")]

    patched: dict[str, Callable[..., object]] = {
        "testbed.record.status.alive_runs": lambda: list(run_ids),
        "testbed.record.status.read_status": read_status,
        "testbed.deployment.aggregator_control.sockets": sockets,
        "testbed.commands.top.alive_runs": lambda **_: list(run_ids),
    }
    for name, function in patched.items():
        monkeypatch.setattr(name, function)


def test_every_run_that_is_alive_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    alive(monkeypatch, "first", "young")
    done = CliRunner().invoke(app, ["status"], env={"COLUMNS": "160"})
    assert done.exit_code == 0
    first, does, record, adds, young, _ = done.stdout.splitlines()
    assert first.startswith("first  quickstart  measured for ")
    assert ", iteration 7/30  4 workers, 8 links" in first
    assert (does.split(), record.split()) == (["does", "training"], ["record", "/results/a"])
    assert adds.endswith("switch-agg top --control /run/first/a0.sock")
    assert "has not said anything yet" in young


def test_one_run_is_identified_by_the_beginning_of_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    alive(monkeypatch, "first", "young")
    found = json.loads(CliRunner().invoke(app, ["status", "fir", "--json"]).stdout)["runs"]
    assert [(run["run_id"], run["iteration"]) for run in found] == [("first", 7)]
    everything = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["runs"]
    assert everything[1] == {"run_id": "young"}


def test_where_no_run_is_alive_status_says_so_and_top_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    alive(monkeypatch)
    assert CliRunner().invoke(app, ["status"]).stdout == "no run is alive here\n"
    for argv in (["status", "first"], ["top"], ["top", "first", "--once"], ["top", "--json"]):
        done = CliRunner().invoke(app, argv)
        assert isinstance(done.exception, SpecError), argv
        assert "no run is alive here" in str(done.exception)


def test_what_is_no_record_cannot_be_replayed(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing", "no such directory"), (tmp_path, "is not a record")):
        done = CliRunner().invoke(app, ["replay", str(path)])
        assert isinstance(done.exception, SpecError)
        assert words in str(done.exception)


@pytest.mark.parametrize("speed", ["0", "-1", "1e9", "fast"])
def test_a_speed_that_is_none_is_refused(tmp_path: Path, speed: str) -> None:
    assert CliRunner().invoke(app, ["replay", str(tmp_path), "--speed", speed]).exit_code == 2
