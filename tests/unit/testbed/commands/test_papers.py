"""`testbed reproduce`, as far as it goes without root."""

import json
from io import StringIO
from pathlib import Path

import yaml
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli import app
from testbed.runner.reproduce import prepare
from tests.cheap_runs import CheapRuns


def test_without_a_name_it_lists_the_papers() -> None:
    done = CliRunner().invoke(app, ["reproduce"])
    assert done.exit_code == 0
    assert "hashemi_2016" in done.stdout
    listed = json.loads(CliRunner().invoke(app, ["reproduce", "--json"]).stdout)
    assert "hashemi_2016" in [paper["name"] for paper in listed["papers"]]


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


def test_results_of_another_machine_are_named_in_every_claim_and_again_asks_the_same(tmp_path: Path) -> None:
    claim = {"name": "c", "of": "W", "take": {"kind": "least"}, "expect": {"at_least": 2}, "why": "because"}
    path = tmp_path / "my spec.yaml"
    path.write_text(yaml.safe_dump({"name": "x", "workers": 2, "claims": [claim]}))
    (elsewhere,) = prepare(str(path), quick=False, output=tmp_path, outcomes=())
    elsewhere.with_part_run(0, CheapRuns(tmp_path, kernel="1.2.3"), Console(file=StringIO()))
    argv = ["reproduce", str(path), "--dry-run", "--reuse", "any", "--json", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, argv)
    (paper,) = json.loads(done.stdout)["papers"]
    (found,) = paper["claims"]
    assert (found["state"], done.exit_code) == ("degraded", 0)
    assert found["reason"].startswith("1 of 1 points made otherwise: another machine (")
    page = (tmp_path / "claims" / "x.html").read_text()
    assert f"my spec.yaml&#39; --output={tmp_path} --reuse=any --dry-run</code>" in page
