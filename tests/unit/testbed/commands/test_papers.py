"""`testbed reproduce`, as far as it goes without root."""

import json
from pathlib import Path

from typer.testing import CliRunner

from testbed.cli import app


def test_without_a_name_it_lists_the_papers() -> None:
    done = CliRunner().invoke(app, ["reproduce"])
    assert done.exit_code == 0
    assert "hashemi_2016" in done.stdout


def test_what_has_not_run_is_not_judged_and_nothing_holds(tmp_path: Path) -> None:
    argv = ["reproduce", "alqahtani_2019", "--quick", "--dry-run", "--json", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 1
    (paper,) = json.loads(done.stdout)["papers"]
    assert paper["paper"]["authors"] == "Alqahtani and Demirbas"
    assert {claim["state"] for claim in paper["claims"]} == {"not judged", "elsewhere", "out of reach"}
    assert not paper["holds"]
    assert paper["quick"] is True
    assert (tmp_path / "claims" / "alqahtani_2019-quick.html").is_file()
    assert not (tmp_path / "claims" / "alqahtani_2019.html").exists()


def test_an_unknown_paper_is_named_with_what_there_is(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "nobody_1999", "--output", str(tmp_path)])
    assert "alqahtani_2019" in str(done.exception)
