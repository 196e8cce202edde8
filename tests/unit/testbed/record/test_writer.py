"""Rows reach the disk while a run goes on; what the file system refuses is named."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from testbed.errors import MissingRequirementError
from testbed.record.frames import LINK_SCHEMA
from testbed.record.reader import Record, load
from testbed.record.writer import RecordWriter, replace_text

Make = Callable[..., Record]


def link_row(at_s: float) -> dict[str, object]:
    numbers = dict.fromkeys(
        ["class_bytes", "class_packets", "drops", "overlimits", "backlog_bytes", "interface_bytes"], 7
    )
    return {
        "at_s": at_s,
        "read_from_s": at_s,
        "link": "w0-s0",
        "node": "w0",
        "port": "w0-eth0",
        "rate_bps": 1e8,
        **numbers,
    }


def test_rows_reach_the_disk_before_the_run_ends(tmp_path: Path) -> None:
    now_s = 0.0
    writer = RecordWriter(tmp_path, now_s=lambda: now_s)
    writer.append_links([link_row(0.1)])
    assert not (tmp_path / "links.parquet").exists()
    now_s = 6.0
    writer.append_links([link_row(0.2)])
    assert pl.read_parquet(tmp_path / "links.parquet")["at_s"].to_list() == [0.1, 0.2]
    now_s = 12.0
    writer.append_links([link_row(0.3)])
    assert pl.read_parquet(tmp_path / "links.parquet").height == 3


def test_two_who_write_one_file_at_once_leave_it_whole_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.with_name(".runs.csv.new").write_text("of somebody who was killed")
    texts = ["a" * 300_000, "b" * 200_000]

    def write(text: str) -> None:
        for _ in range(100):
            replace_text(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, texts))
    assert [each.name for each in tmp_path.iterdir()] == ["runs.csv"]


def test_looking_at_a_frame_does_not_keep_it_from_the_disk(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append_links([link_row(0.1)])
    assert writer.frame("links").height == 1
    writer.flush()
    assert pl.read_parquet(tmp_path / "links.parquet").height == 1


def test_extra_columns_are_left_out_and_missing_ones_refused(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append_links([link_row(0.1) | {"rate_bps": 1e8}])
    assert writer.frame("links").columns == list(LINK_SCHEMA)
    with pytest.raises(KeyError, match="rank"):
        writer.append_iterations([{"phase": "measured"}])


def test_a_run_that_ended_early_still_makes_a_whole_record(tmp_path: Path, record: Make) -> None:
    writer = RecordWriter(tmp_path / "early")
    writer.write_spec("name: early\n")
    writer.finish(record().summary)
    early = load(tmp_path / "early")
    assert early.calibration == {}
    assert early.iterations.is_empty()


def test_a_file_system_that_refuses_is_named(tmp_path: Path, record: Make) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingRequirementError, match=r"cannot write .*file/record: Not a directory"):
        RecordWriter(tmp_path / "file" / "record")
    writer = RecordWriter(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(MissingRequirementError, match=r"gone/spec\.yaml: No such file"):
        writer.write_spec("name: x\n")
    with pytest.raises(MissingRequirementError, match=r"gone/iterations\.parquet: "):
        writer.finish(record().summary)
