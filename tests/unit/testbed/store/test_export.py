import shutil
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.store.export import write_table
from testbed.store.index import Index


def copied(tmp_path: Path) -> Path:
    for version in (2, 3):
        shutil.copytree(f"tests/records/version_{version}", tmp_path / "results" / f"r{version}")
    return tmp_path / "results"


def test_runs_are_a_row_each(tmp_path: Path) -> None:
    with closing(Index(copied(tmp_path))) as index:
        index.refresh()
        assert write_table(index, tmp_path / "runs.csv").frame.height == 2
        frame = pl.read_csv(tmp_path / "runs.csv")
        assert frame["name"].to_list() == ["hashemi-knee", "quickstart"], "oldest first"
        assert frame["record"].to_list() == [str(tmp_path / "results" / name) for name in ("r2", "r3")]
        assert write_table(index, tmp_path / "one.parquet", condition="workers = 4").frame.height == 1
        assert pl.read_parquet(tmp_path / "one.parquet")["scaling_factor"].to_list() == [
            pytest.approx(0.408, abs=0.001)
        ]


def test_tables_of_runs_follow_each_other_with_their_run(tmp_path: Path) -> None:
    with closing(Index(copied(tmp_path))) as index:
        index.refresh()
        number = write_table(index, tmp_path / "iterations.parquet", table="iterations").frame.height
        frame = pl.read_parquet(tmp_path / "iterations.parquet")
        assert frame.height == number
        expected = sum(pl.read_parquet(f"tests/records/version_{v}/iterations.parquet").height for v in (2, 3))
        assert number == expected
        assert frame["run_id"].n_unique() == 2


def test_times_of_tables_are_wall_seconds_and_the_dilation_is_beside_them(tmp_path: Path) -> None:
    results = copied(tmp_path)
    summary = results / "r3" / "summary.json"
    summary.write_text(summary.read_text().replace('"dilation": 1.0', '"dilation": 20.0'))
    with closing(Index(results)) as index:
        index.refresh()
        write_table(index, tmp_path / "links.csv", table="links", condition="workers = 4")
    frame = pl.read_csv(tmp_path / "links.csv")
    assert frame.columns[:4] == ["run_id", "outcome", "dilation", "at_s"]
    assert frame["outcome"].unique().to_list() == ["valid"]
    assert frame["dilation"].unique().to_list() == [20.0]
    assert frame["at_s"].to_list() == pl.read_parquet(results / "r3" / "links.parquet")["at_s"].to_list()


def test_a_damaged_table_is_named_and_keeps_no_other_run_from_being_written(tmp_path: Path) -> None:
    results, file = copied(tmp_path), tmp_path / "links.parquet"
    damaged = results / "r2" / "links.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with closing(Index(results)) as index:
        index.refresh()
        rows = write_table(index, file, table="links")
        assert [problem.record for problem in rows.left_out] == ["r2"]
        assert "links.parquet" in rows.left_out[0].problem
        expected = pl.read_parquet(results / "r3" / "links.parquet")
        assert pl.read_parquet(file).drop("run_id", "outcome", "dilation").equals(expected)
        assert write_table(index, file, table="iterations").left_out == []
        file.unlink()
        with pytest.raises(SpecError, match=r"r2/links\.parquet"):
            write_table(index, file, table="links", condition="record = 'r2'")
        (results / "r3" / "links.parquet").unlink()
        with pytest.raises(SpecError, match=r"links\.parquet"):
            write_table(index, file, table="links")
    assert not file.exists()


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with closing(Index(copied(tmp_path))) as index:
        index.refresh()
        with pytest.raises(SpecError, match=r"\.csv or \.parquet"):
            write_table(index, tmp_path / "runs.xlsx")
        with pytest.raises(SpecError, match="no such runs"):
            write_table(index, tmp_path / "runs.csv", condition="workers = 99")
        with pytest.raises(MissingRequirementError, match="cannot write"):
            write_table(index, tmp_path / "nowhere" / "runs.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
