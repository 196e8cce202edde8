"""`report` of what is no record."""

from pathlib import Path

from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(done.exception, SpecError)
    assert "is not a record" in str(done.exception)
