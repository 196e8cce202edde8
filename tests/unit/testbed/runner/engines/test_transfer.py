"""A record arrives as it was, or not at all."""

from pathlib import Path

import pytest

from testbed.runner.engines import _transfer
from testbed.runner.engines._transfer import File, TransferError, files_of, receive


@pytest.fixture
def record(tmp_path: Path) -> Path:
    directory = tmp_path / "sent"
    (directory / "logs" / "deep").mkdir(parents=True)
    (directory / "summary.json").write_text("{}")
    (directory / "empty").touch()
    (directory / "logs" / "deep" / "w0.log").write_bytes(bytes(range(256)) * 9)
    return directory


def reader(directory: Path):  # type: ignore[no-untyped-def]
    def read(path: str, offset: int) -> bytes:
        return (directory / path).read_bytes()[offset : offset + _transfer.CHUNK_BYTES]

    return read


def test_every_file_arrives_in_parts(tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transfer, "CHUNK_BYTES", 1000)
    files = files_of(record)
    assert [file.path for file in files] == ["empty", "logs/deep/w0.log", "summary.json"]
    receive(files, reader(record), tmp_path / "received")
    assert files_of(tmp_path / "received") == files


def test_what_has_changed_or_is_cut_is_no_record(tmp_path: Path, record: Path) -> None:
    files = files_of(record)
    (record / "summary.json").write_text("[]")
    with pytest.raises(TransferError, match=r"summary\.json: 2 bytes arrived that are not the 2 sent"):
        receive(files, reader(record), tmp_path / "changed")
    (record / "summary.json").write_text("{")
    with pytest.raises(TransferError, match=r"summary\.json: 1 bytes arrived that are not the 2 sent"):
        receive(files, reader(record), tmp_path / "cut")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(TransferError, match="no path inside a record"):
        receive([File(path, 1, "")], lambda *_: b"x", tmp_path / "received")
    assert not (tmp_path / "x").exists()


def test_what_is_no_plain_file_is_not_sent(record: Path) -> None:
    (record / "link").symlink_to("/etc/hostname")
    with pytest.raises(TransferError, match="no plain file"):
        files_of(record)
