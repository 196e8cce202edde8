import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.store.index import COLUMNS, Index

RECORDS = Path("tests/records")
NUM_RECORDS = int(os.environ.get("STORE_RECORDS", "200"))


def make(directory: Path, run_id: str, *, version: int = 3, **changes: Any) -> Path:
    """A record of so many bytes as an index reads."""
    source, path = RECORDS / f"version_{version}", directory / f"made-{run_id}"
    path.mkdir(parents=True)
    summary = json.loads((source / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "run_id": run_id, **changes}))
    for name in ("spec.yaml", "environment.json"):
        shutil.copy(source / name, path / name)
    return path


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    make(tmp_path, "a1", started_at="2026-01-01T00:00:00+00:00")
    make(tmp_path, "b2", version=2, started_at="2026-01-02T00:00:00+00:00")
    with closing(Index(tmp_path)) as opened:
        opened.refresh()
        yield opened


def test_records_of_every_version_are_in_it_newest_first(index: Index) -> None:
    newest, oldest = index.runs()
    assert (newest["run_id"], newest["name"], newest["collective"]) == ("b2", "hashemi-knee", "parameter_server")
    assert (oldest["workers"], oldest["link_rate"], oldest["workload"]) == (4, "100mbit", "training cnn")
    assert oldest["iteration_time_s"] == pytest.approx(0.736, abs=0.001)
    assert oldest["record"] == "made-a1"
    assert list(oldest) == [column.name for column in COLUMNS]
    assert all(oldest[name] is not None for name in ("machine", "commit_id", "scaling_factor", "utilization_mean"))
    assert (newest["schema_version"], oldest["schema_version"]) == (2, 3), "as they were written"
    assert index.runs("workers = 2") == [newest]
    assert [run["run_id"] for run in index.runs("workers > 1 -- all", limit=1)] == ["b2"]
    assert index.runs(limit=1) == [newest]


def test_what_comes_changes_and_goes_is_noticed(index: Index) -> None:
    directory = index.directory
    make(directory, "c3", started_at="2026-01-03T00:00:00+00:00")
    assert index.refresh() == (1, 0)
    assert index.refresh() == (0, 0)
    path = directory / "made-c3" / "summary.json"
    path.write_text(path.read_text().replace('"outcome": "valid"', '"outcome": "degraded"'))
    assert index.refresh() == (1, 0)
    assert index.find("c3")["outcome"] == "degraded"
    shutil.rmtree(directory / "made-a1")
    assert index.refresh() == (0, 1)
    assert [run["run_id"] for run in index.runs()] == ["c3", "b2"]
    assert index.rebuild().num_read == 2


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("summary.json", '{"schema_version": 4, "na', "summary.json cannot be read"),
        ("summary.json", '{"schema_version": 1}', "summary.json: schema_version is 1; this version reads 2 to 4"),
        ("summary.json", '{"schema_version": 4}', "summary.json: name: Field required"),
        ("spec.yaml", "a: [", "spec.yaml"),
        ("spec.yaml", "[1]", "spec.yaml: not a mapping"),
        ("environment.json", "{}", "environment.json cannot be read"),
        ("summary.json", None, "the run has not finished"),
        ("summary.json", "[" * 100_000, "RecursionError"),
        ("spec.yaml", "workers: [1]", "a value that no column takes"),
        ("spec.yaml", "workers: 99999999999999999999", "a value that no column takes"),
        ("spec.yaml", "2020-01-01: 3", "TypeError"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_harms_no_other(
    index: Index, name: str, text: str | None, problem: str
) -> None:
    path = make(index.directory, "c3")
    if text is None:
        (path / name).unlink()
    else:
        (path / name).write_text(text)
        os.utime(path / "summary.json")
    index.refresh()
    (found,) = index.problems()
    assert found.record == "made-c3"
    assert found.problem.startswith(problem), found.problem
    assert [run["run_id"] for run in index.runs()] == ["b2", "a1"]
    shutil.rmtree(path)
    make(index.directory, "c3")
    index.refresh()
    assert index.problems() == []


def test_a_document_that_cannot_be_looked_at_is_named_and_harms_no_other(index: Index) -> None:
    path = make(index.directory, "c3") / "summary.json"
    path.unlink()
    path.symlink_to(path)
    index.refresh()
    (found,) = index.problems()
    assert found.record == "made-c3"
    assert [run["run_id"] for run in index.runs()] == ["b2", "a1"]
    (path.parent / "spec.yaml").unlink()
    index.refresh()
    assert [problem.record for problem in index.problems()] == ["made-c3"]


def test_other_directories_are_no_records(index: Index) -> None:
    (index.directory / "made-sweep-0a1b").mkdir()
    (index.directory / "made-sweep-0a1b" / "sweep.json").write_text("{}")
    (index.directory / "notes.txt").write_text("")
    make(index.directory, "hidden").rename(index.directory / ".deleted-hidden")
    assert index.refresh() == (0, 0)


def test_a_directory_whose_name_is_no_text_is_named_and_harms_no_other(index: Index) -> None:
    make(index.directory, "c3").rename(os.fsdecode(os.fsencode(index.directory) + b"/caf\xe9"))
    index.refresh()
    assert [(each.record, each.problem) for each in index.problems()] == [
        (r"caf\xe9", "the directory's name is not UTF-8: rename it")
    ]
    assert [run["run_id"] for run in index.runs()] == ["b2", "a1"]


def test_what_a_deletion_has_left_that_was_interrupted_goes_with_the_next_rebuild(index: Index) -> None:
    left = index.directory / ".deleted-made-b2"
    (index.directory / "made-b2").rename(left)
    assert index.rebuild() == (1, 0)
    assert not left.exists()
    assert [run["run_id"] for run in index.runs()] == ["a1"]


def test_a_run_is_found_by_the_beginning_of_its_id_or_record(index: Index) -> None:
    assert index.find("b")["run_id"] == index.find("made-b")["run_id"] == index.find("last")["run_id"] == "b2"
    with pytest.raises(SpecError, match="several runs begin so: b2, a1"):
        index.find("made-")
    for nobody in ("z", "_1", "%", "a' OR 'x"):
        with pytest.raises(SpecError, match="no run below"):
            index.find(nobody)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM runs", "readonly"),
        ("SELECT missing FROM runs", "no such column"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("ATTACH 'x.db' AS other", "too many attached"),
        ("SELECT a.name, b.name FROM runs a, runs b", "several columns are called name; write AS"),
        ("SELECT '\udcff'", "surrogates not allowed"),
        ('SELECT name FROM runs WHERE "scaling_factr" > 0.9', '"scaling_factr" is no column'),
    ],
)
def test_a_query_only_reads(index: Index, statement: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        index.query(statement)
    assert len(index.runs()) == 2


def test_names_in_double_quotes_are_columns_or_aliases(index: Index) -> None:
    statement = """SELECT "workers" AS "n", 'a "b" c' AS "text" FROM "runs" ORDER BY "n" """
    assert index.query(statement)[1] == [{"n": 2, "text": 'a "b" c'}, {"n": 4, "text": 'a "b" c'}]


def test_what_json_knows_nothing_of_is_made_plain(index: Index) -> None:
    assert index.query("SELECT x'00ff' AS bytes, 9e999 AS infinite")[1] == [{"bytes": "00ff", "infinite": None}]


def test_a_query_reaches_into_specs(index: Index) -> None:
    names, rows = index.query("SELECT run_id, json_extract(spec, '$.workers') AS n FROM runs ORDER BY n")
    assert names == ["run_id", "n"]
    assert rows == [{"run_id": "b2", "n": 2}, {"run_id": "a1", "n": 4}]


def test_deleting_removes_a_record_and_nothing_else(index: Index) -> None:
    index.delete("made-a1")
    assert not (index.directory / "made-a1").exists()
    assert [run["run_id"] for run in index.runs()] == ["b2"]
    for name in ("made-a1", "../made-b2", ".", "index.db"):
        with pytest.raises(SpecError, match="not a record of"):
            index.delete(name)
    assert (index.directory / "made-b2").exists()


def test_an_index_that_is_none_is_an_error_that_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such directory"):
        Index(tmp_path / "nowhere")
    (tmp_path / "index.db").write_text("this is no database, and long enough to be seen as none " * 20)
    with pytest.raises(MissingRequirementError, match="remove it"):
        Index(tmp_path)


def test_an_index_of_another_version_is_made_again(index: Index) -> None:
    with closing(sqlite3.connect(index.path)) as other:
        other.execute("ALTER TABLE runs DROP COLUMN machine")
        other.execute("PRAGMA user_version = 1")
    with closing(Index(index.directory)) as again:
        assert again.refresh() == (2, 0)
        assert again.runs()[0]["machine"]


WRITER = """
import sys, shutil
from pathlib import Path
sys.path.insert(0, "tests/unit/testbed/store")
from test_index import make
from testbed.store.index import Index
directory, letter = Path(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    make(directory, f"{letter}{number}")
    index = Index(directory)
    index.refresh()
    index.close()
"""


def test_two_writers_and_a_reader_at_once(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*argv, letter, "15"]) for letter in "xy"]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        with closing(Index(tmp_path)) as index:
            index.refresh()
            number = len(index.runs())
            assert number >= seen, "what was there stays"
            assert index.problems() == [] or all(problem.record.startswith("made-") for problem in index.problems())
            seen = number
    assert [writer.wait() for writer in writers] == [0, 0]
    with closing(Index(tmp_path)) as index:
        index.refresh()
        assert len(index.runs()) == 30
        assert index.problems() == []


def test_many_records_are_listed_without_reading_them_again(tmp_path: Path) -> None:
    for number in range(NUM_RECORDS):
        make(tmp_path, f"{number:06d}")
    with closing(Index(tmp_path)) as index:
        begun_s = time.monotonic()
        assert index.rebuild().num_read == NUM_RECORDS
        rebuilt_s = time.monotonic() - begun_s
        begun_s = time.monotonic()
        assert index.refresh() == (0, 0)
        assert len(index.runs(limit=20)) == 20
        index.query("SELECT avg(iteration_time_s) FROM runs WHERE outcome = 'valid'")
        listed_s = time.monotonic() - begun_s
    assert listed_s < rebuilt_s, f"{NUM_RECORDS} records: rebuilt in {rebuilt_s:.1f} s, listed in {listed_s:.3f} s"
    sys.stdout.write(f"{NUM_RECORDS} records: rebuilt in {rebuilt_s:.1f} s, listed and queried in {listed_s:.3f} s\n")
