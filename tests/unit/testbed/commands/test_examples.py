import json
from pathlib import Path

from typer.testing import CliRunner

from testbed.cli import app


def test_examples_are_listed_and_copied(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["examples"])
    assert listed.exit_code == 0
    assert "link_speed" in listed.stdout
    rows = json.loads(CliRunner().invoke(app, ["examples", "--json"]).stdout)
    assert {"name": "quickstart", "kind": "spec"}.items() <= next(
        row for row in rows if row["name"] == "quickstart"
    ).items()
    copied = CliRunner().invoke(app, ["examples", "copy", "quickstart", str(tmp_path)])
    assert copied.stdout == f"{tmp_path / 'quickstart.yaml'}\n"
    again = CliRunner().invoke(app, ["examples", "copy", "quickstart", str(tmp_path)])
    assert again.exit_code != 0


def test_a_spec_is_found_by_its_name_in_every_command_that_takes_one(tmp_path: Path) -> None:
    for words in (["plan", "quickstart"], ["predict", "quickstart"], ["simulate", "quickstart"]):
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)
    swept = CliRunner().invoke(app, ["sweep", "link_speed", "--dry-run", "--json", "--output", str(tmp_path)])
    assert len(json.loads(swept.stdout)["points"]) == 5
