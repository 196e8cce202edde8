"""What `plan` and `schema` refuse and print."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import MissingRequirementError, SpecError

QUICKSTART = Path(__file__).parents[4] / "experiments" / "quickstart.yaml"


def test_a_spec_that_is_not_there_is_named() -> None:
    done = CliRunner().invoke(app, ["plan", "none.yaml"])
    assert isinstance(done.exception, SpecError)
    assert "cannot read none.yaml" in str(done.exception)


def test_the_schema_knows_every_section() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert {"workers", "link", "workload", "collective", "sweep"} <= schema["properties"].keys()


@pytest.mark.parametrize(("user", "refused"), [(0, True), (1000, False)])
def test_a_delay_that_cannot_be_had_here_is_planned_and_then_refused(
    monkeypatch: pytest.MonkeyPatch, user: int, refused: bool
) -> None:
    """It was planned for a kernel with netem, and refused by `run` only. Who is not root cannot try."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(
        "testbed.machine.doctor.missing_for_backend", lambda name: "" if name == "tap" else "no such thing"
    )
    done = CliRunner().invoke(app, ["plan", str(QUICKSTART), "--set", "link.delay=50us"])
    assert "netem" in done.stdout
    assert isinstance(done.exception, MissingRequirementError) is refused
    if refused:
        assert "tap works here, but link.delay: tap honours" in str(done.exception)
        assert "link.backend=netem can" not in str(done.exception)
