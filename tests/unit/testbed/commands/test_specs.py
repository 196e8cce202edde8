"""What `plan` and `schema` refuse and print."""

import json

from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError


def test_a_spec_that_is_not_there_is_named() -> None:
    done = CliRunner().invoke(app, ["plan", "none.yaml"])
    assert isinstance(done.exception, SpecError)
    assert "cannot read none.yaml" in str(done.exception)


def test_the_schema_knows_every_section() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    assert {"workers", "link", "workload", "collective", "sweep"} <= schema["properties"].keys()
