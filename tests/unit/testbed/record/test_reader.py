"""What is written is read back; what is not a record is refused in words."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from testbed.errors import SpecError
from testbed.record.frames import LINK_SCHEMA
from testbed.record.reader import CHECKSUMS, Record, load, load_frame
from testbed.record.summary import Summary

Make = Callable[..., Record]


def test_a_record_is_read_back_as_it_was_written(record: Make) -> None:
    loaded = record()
    assert loaded.summary == Summary.model_validate_json((loaded.path / "summary.json").read_text())
    assert loaded.spec_yaml.startswith("name: quickstart")
    assert loaded.plan == {"nodes": ["w0", "s0"]}
    assert loaded.environment["cpu"]["num_cores"] == 2
    assert loaded.iterations.height == 4 * (8 + 8 + 3 + 30)
    assert loaded.buckets.height == 4 * 4 * (3 + 30)
    assert dict(loaded.links.schema) == LINK_SCHEMA
    assert (loaded.path / "logs").is_dir()
    assert not list(loaded.path.glob(".*")), "no temporary file is left"


def test_what_is_not_a_record_is_refused_in_words(tmp_path: Path, record: Make) -> None:
    with pytest.raises(SpecError, match="no such directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="is not a record: it has neither"):
        load(tmp_path)
    whole = record()
    (whole.path / "links.parquet").unlink()
    (whole.path / "plan.json").unlink()
    with pytest.raises(SpecError, match=r"plan\.json, links\.parquet missing"):
        load(whole.path)
    (whole.path / "summary.json").unlink()
    with pytest.raises(SpecError, match=r"did not finish .*logs"):
        load(whole.path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plan.json", "{", r"plan\.json cannot be read"),
        ("plan.json", "[]", "holds no JSON object"),
        ("plan.json", b"\xff\xfe", r"plan\.json cannot be read"),
        ("spec.yaml", b"\xff\xfe", r"spec\.yaml cannot be read"),
        ("links.parquet", "not parquet", r"links\.parquet is not what the run wrote, says SHA256SUMS"),
        (CHECKSUMS, b"\xff\xfe", "SHA256SUMS cannot be read"),
        ("summary.json", '{"schema_version": 99}', "schema_version is 99; this version reads 2 to 4"),
        ("summary.json", '{"schema_version": 4}', r"summary\.json: name: Field required"),
    ],
)
def test_damage_is_named(record: Make, name: str, content: str | bytes, message: str) -> None:
    path = record().path
    (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SpecError, match=message):
        load(path)


def test_frames_of_another_kind_are_refused(record: Make) -> None:
    path = record().path
    pl.DataFrame({"x": [1]}).write_parquet(path / "links.parquet")
    (path / CHECKSUMS).unlink()
    with pytest.raises(SpecError, match="other columns"):
        load(path)


def test_a_byte_that_has_changed_is_seen_where_the_table_can_still_be_read(record: Make) -> None:
    path = record().path
    table = path / "iterations.parquet"
    whole = table.read_bytes()
    for at in range(0, len(whole), 997):
        table.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(SpecError, match=r"iterations\.parquet is not what the run wrote"):
            load_frame(path, "iterations")


def test_a_table_at_which_polars_panics_cannot_be_read(tmp_path: Path) -> None:
    """Of a record that was made before there were checksums."""
    content = bytearray(Path("tests/records/version_3/iterations.parquet").read_bytes())
    content[88] ^= 0xFF
    (tmp_path / "iterations.parquet").write_bytes(content)
    with pytest.raises(SpecError, match=r"iterations\.parquet cannot be read"):
        load_frame(tmp_path, "iterations")
