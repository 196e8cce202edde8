"""A page is opened for who requests one, and refused before anything is made."""

import pytest
from typer.testing import CliRunner

import testbed.live.server
from testbed.cli import app
from testbed.commands.live_page import live_feed
from testbed.errors import MissingRequirementError, SpecError

QUICKSTART = "experiments/quickstart.yaml"


def test_without_live_there_is_no_page() -> None:
    with live_feed(live=False, port=None, address=None) as feed:
        assert feed is None


@pytest.mark.parametrize("option", [["--live-port", "8000"], ["--live-address", "0.0.0.0"]])
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_an_option_of_the_page_means_nothing_without_it(command: str, option: list[str]) -> None:
    varying = ["--set", "sweep.seed=[1, 2]"] if command == "sweep" else []
    done = CliRunner().invoke(app, [command, QUICKSTART, *varying, *option])
    assert isinstance(done.exception, SpecError)
    assert str(done.exception) == f"{option[0]} is about the page of --live: add --live, or leave it out"


@pytest.mark.parametrize("argv", [["run", QUICKSTART, "--live"], ["replay", "results/a"]])
def test_what_the_live_page_needs_is_named_with_its_fix(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed.live.server, "find_spec", lambda _name: None)
    done = CliRunner().invoke(app, argv)
    assert isinstance(done.exception, MissingRequirementError)
    assert "starlette and uvicorn: pip install 'ina-testbed[live]'" in str(done.exception)
