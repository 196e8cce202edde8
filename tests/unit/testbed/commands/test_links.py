"""`link show`, `set`, `down`, `up`: what a line asks of the run, and what is said of its answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError
from testbed.experiment.link import LinkSpec

REQUESTED = LinkSpec.model_validate({"rate": "100mbit"}).model_dump(mode="json", by_alias=True)
CHANGED = {"link": "w1-s0", "from": "w1", "to": "s0", "setting": "rate", "before": "100mbit", "after": "50mbit"}


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was requested of the run: (run, link, settings, carrier)."""
    found: list[Any] = []

    def change_links(run_id: str, link: str, settings: Mapping[str, str], *, carrier: str | None) -> list[Any]:
        found.append((run_id, link, dict(settings), carrier))
        return [CHANGED] if link == "w1-s0" else []

    row: dict[str, Any] = {"link": "w1-s0", "from": "w1", "to": "s0", "down": True, "requested": REQUESTED}
    row |= {"used_bps": 5e6, "backlog_bytes": 3028, "drops": 7, "marks": 2}
    monkeypatch.setattr("testbed.runner.link_client.choose_run", lambda name: name or "the only one")
    monkeypatch.setattr("testbed.runner.link_client.change_links", change_links)
    monkeypatch.setattr("testbed.runner.link_client.show_links", lambda _: [row])
    return found


@pytest.mark.parametrize(
    ("argv", "question"),
    [
        (["set", "w1-s0", "--rate", "50mbit"], ("the only one", "w1-s0", {"rate": "50mbit"}, None)),
        (
            ["set", "last", "w1-s0", "--queue", "2bdp", "--loss", "1%"],
            ("last", "w1-s0", {"loss": "1%", "queue": "2bdp"}, None),
        ),
        (["down", "w1-s0"], ("the only one", "w1-s0", {}, "down")),
        (["up", "2611", "w1-s0"], ("2611", "w1-s0", {}, "up")),
    ],
)
def test_a_line_asks_what_it_says_and_tells_what_became_what(
    requested: list[Any], argv: list[str], question: tuple[Any, ...]
) -> None:
    done = CliRunner().invoke(app, ["link", *argv])
    assert (done.exit_code, done.stdout) == (0, "w1 -> s0: rate 100mbit -> 50mbit\n")
    assert requested == [question]
    printed = json.loads(CliRunner().invoke(app, ["link", *argv, "--json"]).stdout)
    assert (printed["run_id"], printed["changed"]) == (question[0], [CHANGED])


def test_what_was_so_already_is_said(requested: list[Any]) -> None:
    assert "nothing changed" in CliRunner().invoke(app, ["link", "up", "w2-s0"]).stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["set", "w1-s0"], "nothing to change: name one of --rate, --delay, --jitter, --loss"),
        (["down", "last", "w1-s0", "w2-s0"], "last w1-s0 w2-s0: write [RUN] LINK, such as `last w1-s0`"),
    ],
)
def test_a_line_that_asks_nothing_or_too_much_is_refused(requested: list[Any], argv: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["link", *argv])
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)
    assert requested == []


def test_every_direction_is_shown(requested: list[Any]) -> None:
    shown = CliRunner().invoke(app, ["link", "show"], env={"COLUMNS": "120"}).stdout
    assert "w1" in shown
    assert "down" in shown
    printed = json.loads(CliRunner().invoke(app, ["link", "show", "last", "--json"]).stdout)
    assert (printed["run_id"], printed["links"][0]["backlog_bytes"]) == ("last", 3028)
