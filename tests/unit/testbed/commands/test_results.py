import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for version in (2, 3):
        shutil.copytree(f"tests/records/version_{version}", tmp_path / "results" / f"r{version}")
    return tmp_path / "results"


def run(output: Path, *words: str, **keywords: Any) -> str:
    done = CliRunner().invoke(app, [*words, "--output", str(output)], **keywords)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_runs_are_listed_and_filtered(output: Path) -> None:
    listed = json.loads(run(output, "results", "list", "--json"))
    assert [each["name"] for each in listed["runs"]] == ["quickstart", "hashemi-knee"]
    assert listed["left_out"] == []
    one = json.loads(run(output, "results", "list", "--json", "--where", "workers = 2"))
    assert [each["name"] for each in one["runs"]] == ["hashemi-knee"]
    assert len(json.loads(run(output, "results", "list", "--json", "--limit", "1"))["runs"]) == 1
    assert len(json.loads(run(output, "results", "list", "--json", "--limit", "0"))["runs"]) == 2
    assert "100mbit" in run(output, "results", "list")


def test_one_run_is_shown_from_where_its_record_is(output: Path) -> None:
    shown = json.loads(run(output, "results", "show", "r3", "--json"))
    assert (shown["name"], shown["record"]) == ("quickstart", str(output / "r3"))
    assert "VALID" in run(output, "results", "show", "last")


def test_a_query_answers(output: Path) -> None:
    statement = "SELECT max(workers) AS n FROM runs"
    assert json.loads(run(output, "results", "query", statement, "--json")) == [{"n": 4}]
    assert run(output, "results", "query", statement).split() == ["n", "4"]


def test_a_table_is_exported(output: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    assert run(output, "results", "export", str(file)).strip() == f"2 rows in {file}".strip()
    assert len(file.read_text().splitlines()) == 3
    (output / "r2" / "links.parquet").unlink()
    said = run(output, "results", "export", str(file), "--table", "links").splitlines()
    assert [said[0].endswith(f" rows in {file}"), said[1].startswith("left out: r2: ")] == [True, True]


def test_deleting_asks_first_and_looks_all_up_before_the_first_goes(output: Path) -> None:
    with pytest.raises(SpecError, match="no run below"):
        run(output, "results", "delete", "r2", "zz", "--yes")
    declined = CliRunner().invoke(app, ["results", "delete", "r2", "--output", str(output)], input="n\n")
    assert declined.exit_code == 1
    assert (output / "r2").exists()
    run(output, "results", "delete", "r2", input="y\n")
    assert not (output / "r2").exists()
    assert (output / "r3").exists()


def test_a_run_that_is_named_twice_is_deleted_once(output: Path) -> None:
    said = run(output, "results", "delete", "r3", "last", "r2", "--yes")
    assert [line.rpartition("/")[2] for line in said.splitlines()] == ["r3", "r2"]
    assert not list(output.glob("r*"))


def test_an_index_is_made_again_and_names_what_it_leaves_out(output: Path) -> None:
    (output / "r2" / "summary.json").write_text("{")
    made = json.loads(run(output, "results", "rebuild", "--json"))
    assert made["read"] == 2
    assert [each["record"] for each in made["left_out"]] == ["r2"]
    assert "left out: r2" in run(output, "results", "rebuild")


def test_unlike_runs_are_compared_only_by_force(output: Path) -> None:
    with pytest.raises(SpecError, match="different questions"):
        run(output, "compare", "r2", "r3")
    found = json.loads(run(output, "compare", "r2", "r3", "--force", "--metric", "allreduce_time_s", "--json"))
    assert [setting["outcomes"] for setting in found["settings"]] == [["valid"], ["valid"]]
    assert found["settings"][1]["ratio"] > 1
    assert any("different questions" in note for note in found["notes"])


def test_what_is_compared_has_a_page_and_the_same_json(output: Path, tmp_path: Path) -> None:
    words = ("compare", "r2", "r3", "--force", "--metric", "allreduce_time_s")
    page = tmp_path / "pages" / "compared.html"
    assert run(output, *words, "--page", str(page), "--json") == run(output, *words, "--json")
    assert {path.name for path in page.parent.iterdir()} == {"compared.html", "compared.md", "compared-figures"}
    assert f"page {page}" in " ".join(run(output, *words, "--page", str(page)).split("\n"))
    with pytest.raises(SpecError, match=r"a page's name ends in \.html"):
        run(output, *words, "--page", str(tmp_path / "compared.md"))


def test_columns_are_explained() -> None:
    done = CliRunner().invoke(app, ["results", "columns", "--json"])
    assert {"name": "scaling_factor", "type": "REAL", "meaning": "T_n / (n T_1)"} in json.loads(done.stdout)


def test_runs_are_written_to_a_tracker(output: Path, tmp_path: Path) -> None:
    said = run(output, "results", "track", "r2", "r3", "--to", f"tensorboard:{tmp_path / 'runs'}")
    assert said.splitlines() == [f"{name}: written to tensorboard:{tmp_path / 'runs'}" for name in ("r2", "r3")]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"r2", "r3"}
