import json
from pathlib import Path

import polars as pl
import pytest

from testbed.record.frames import WAIT_SCHEMA
from testbed.record.migrations import migrated, with_behind, with_sources
from testbed.record.reader import load, load_summary
from testbed.record.summary import SCHEMA_VERSION, Summary

RECORDS = sorted(Path("tests/records").glob("version_*"))


def test_there_is_a_record_of_every_version() -> None:
    assert [path.name for path in RECORDS] == [f"version_{version}" for version in range(2, SCHEMA_VERSION + 1)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name)
def test_a_record_of_every_version_is_read_whole(record: Path) -> None:
    written = json.loads((record / "summary.json").read_text())
    summary = load_summary(record / "summary.json")
    assert f"version_{written['schema_version']}" == record.name
    assert summary.schema_version == SCHEMA_VERSION
    assert summary.iteration_time_s is not None
    assert summary.iteration_time_s.mean == written["iteration_time_s"]["mean"]
    assert len(summary.uss_bytes) == summary.num_workers
    loaded = load(record)
    assert loaded.iterations.height > 0
    if written["schema_version"] < 4:
        assert loaded.iterations["host_to_device_end_s"].equals(loaded.iterations["data_end_s"], check_names=False)
        assert loaded.stages.is_empty()


def test_this_version_is_left_as_it_is() -> None:
    document = json.loads((RECORDS[-1] / "summary.json").read_text())
    assert migrated(document) is document
    Summary.model_validate(document)


@pytest.mark.parametrize("version", [None, 1, SCHEMA_VERSION + 1, "3"])
def test_a_version_that_is_not_known_is_named(version: object) -> None:
    with pytest.raises(ValueError, match=f"schema_version is {version!r}; this version reads 2 to {SCHEMA_VERSION}"):
        migrated({"schema_version": version})


@pytest.mark.parametrize(("outcome", "moved"), [("valid", True), ("degraded", False)])
def test_what_an_older_record_says_of_a_valid_run_is_notes(outcome: str, moved: bool) -> None:
    """Of the others it is not known which are."""
    found = migrated({"schema_version": 3, "outcome": outcome, "reasons": ["links changed"]})
    assert (found["reasons"], found.get("notes", [])) == (([], ["links changed"]) if moved else (["links changed"], []))


def test_words_of_version_2_are_this_versions() -> None:
    document = json.loads((RECORDS[0] / "summary.json").read_text())
    words = json.loads(Path("tests/words_of_version_2.json").read_text())
    found = Summary.model_validate(migrated({**document, **words}))
    assert [each.requested for each in found.background] == ["1 Mbit/s"]
    assert [each.source for each in found.changes] == ["manual"]
    assert with_sources(pl.DataFrame({"source": ["hand", "trace"]}))["source"].to_list() == ["manual", "trace"]


def test_of_older_records_no_wait_is_known_to_be_behind_the_own_thread() -> None:
    older = pl.DataFrame({"host": ["w0"], "computing": [True], "begin_s": [1.0], "end_s": [2.0]})
    found = with_behind(older)
    assert dict(found.schema) == WAIT_SCHEMA
    assert found.rows() == [("w0", True, False, 1.0, 2.0)]
    assert with_behind(found) is found
