"""`report` of what is no record."""

import json
import shutil
from pathlib import Path

from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(done.exception, SpecError)
    assert "is not a record" in str(done.exception)


def test_a_copy_of_a_record_is_reported_where_it_is(tmp_path: Path) -> None:
    path = shutil.copytree("tests/records/version_4", tmp_path / "copied")
    done = CliRunner().invoke(app, ["report", str(path), "--json"])
    assert json.loads(done.stdout)["summary"]["record"] == str(path)
