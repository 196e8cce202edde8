"""Writes a record while its run goes on (its parts: testbed.record.reader)."""

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import polars as pl

from testbed.errors import MissingRequirementError
from testbed.record.frames import FRAMES
from testbed.record.reader import CHECKSUMS, DOCUMENTS
from testbed.record.summary import Summary

_FLUSH_INTERVAL_S: Final = 5.0
# Flushing rewrites the whole file; in a long run this bounds its share of the time to 2 %.
_FLUSH_SPACING: Final = 50.0


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the file system refuses is a MissingRequirementError that says so."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MissingRequirementError(f"cannot write {path}: {reason}; records need a writable directory") from error


def replace_text(path: Path, text: str) -> None:
    """Write so that a reader, or a crash, sees the old text or the new one and nothing between.

    Raises MissingRequirementError.
    """
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes, *, make_folder: bool = False) -> None:
    """Write bytes so that a reader, or a crash, sees the old ones or the new ones and nothing between; in a folder that
    is made if need be and requested. Raises MissingRequirementError."""
    if make_folder:
        with _writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    with _writing(path):
        while not _published(path, data):
            pass


def _published(path: Path, data: bytes) -> bool:
    """False where another writer of the same file has had the temporary one, and has published it meanwhile.

    Whoever is killed leaves at most one file, which the next writer takes; that two do not write into it at once is
    seen to by a lock on it, which the kernel takes from whoever ends.
    """
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if not os.path.samestat(os.fstat(file.fileno()), temporary.stat()):
                return False
        except FileNotFoundError:
            return False
        try:
            file.truncate(0)
            file.write(data)
            file.flush()
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    return True


class RecordWriter:
    """Writes a record while the run goes on. Any thread may append; a crash loses the last seconds.

    Every method that writes raises MissingRequirementError when the file system refuses.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now_s: Callable[[], float] = time.monotonic,
        on_rows: Callable[[str, Sequence[Mapping[str, object]]], None] | None = None,
    ) -> None:
        """`on_rows` hears which table has got which rows, on the thread that appended them."""
        self.directory = directory
        self._on_rows = on_rows
        self.logs = directory / "logs"
        with _writing(directory):
            self.logs.mkdir(parents=True, exist_ok=True)
        self._now_s = now_s
        self._rows: dict[str, list[Mapping[str, object]]] = {name: [] for name in FRAMES}
        self._frames = {name: pl.DataFrame(schema=dict(schema)) for name, schema in FRAMES.items()}
        self._num_written = dict.fromkeys(FRAMES, -1)  # rows on disk; -1: no file yet
        self._rows_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._next_flush_s = now_s() + _FLUSH_INTERVAL_S

    def write_spec(self, text: str) -> None:
        """The resolved spec as YAML."""
        replace_text(self.directory / "spec.yaml", text)

    def write_plan(self, plan: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("plan", plan)

    def write_environment(self, environment: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("environment", environment)

    def write_calibration(self, calibration: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("calibration", calibration)

    def append_iterations(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of ITERATION_SCHEMA; others are left out."""
        self._append("iterations", rows)

    def append_buckets(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of BUCKET_SCHEMA; others are left out."""
        self._append("buckets", rows)

    def append_links(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of LINK_SCHEMA; others are left out."""
        self._append("links", rows)

    def append_backlog(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of BACKLOG_SCHEMA; others are left out."""
        self._append("backlog", rows)

    def append_machine(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of MACHINE_SCHEMA; others are left out."""
        self._append("machine", rows)

    def append_changes(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of CHANGE_SCHEMA; others are left out."""
        self._append("changes", rows)

    def append_stages(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of STAGE_SCHEMA; others are left out."""
        self._append("stages", rows)

    def append_waits(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of WAIT_SCHEMA; others are left out."""
        self._append("waits", rows)

    def frame(
        self, name: Literal["iterations", "buckets", "links", "backlog", "machine", "changes", "stages", "waits"]
    ) -> pl.DataFrame:
        """Everything appended so far."""
        with self._flush_lock:
            self._absorb(name)
            return self._frames[name]

    def flush(self) -> None:
        """Write every frame to its file."""
        with self._flush_lock:
            started_s = self._now_s()
            for name in FRAMES:
                self._absorb(name)
                if self._num_written[name] != self._frames[name].height:
                    temporary = self.directory / f".{name}.parquet.new"
                    with _writing(self.directory / f"{name}.parquet"):
                        self._frames[name].write_parquet(temporary, compression="zstd")
                        temporary.replace(self.directory / f"{name}.parquet")
                    self._num_written[name] = self._frames[name].height
            ended_s = self._now_s()
            self._next_flush_s = ended_s + max(_FLUSH_INTERVAL_S, _FLUSH_SPACING * (ended_s - started_s))

    def finish(self, summary: Summary) -> None:
        """Complete the record. A document never written becomes `{}`: the run ended before it was known."""
        self.flush()
        with _writing(self.directory / CHECKSUMS):
            tables = [self.directory / f"{name}.parquet" for name in FRAMES]
            lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in tables]
        replace_text(self.directory / CHECKSUMS, "".join(lines))
        for name in DOCUMENTS:
            if not (self.directory / f"{name}.json").exists():
                self._write_json(name, {})
        replace_text(self.directory / "summary.json", summary.model_dump_json(by_alias=True, indent=2) + "\n")

    def _append(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        new = [{column: row[column] for column in FRAMES[name]} for row in rows]
        with self._rows_lock:
            self._rows[name] += new
        if self._on_rows is not None:
            self._on_rows(name, new)
        # Whoever finds a flush in progress leaves it alone: a sampler must not wait for the disk.
        if self._now_s() >= self._next_flush_s and not self._flush_lock.locked():
            self.flush()

    def _absorb(self, name: str) -> None:
        with self._rows_lock:
            rows, self._rows[name] = self._rows[name], []
        if rows:
            self._frames[name] = self._frames[name].vstack(pl.DataFrame(rows, schema=dict(FRAMES[name])))

    def _write_json(self, name: str, document: Mapping[str, object]) -> None:
        text = json.dumps(document, indent=2, allow_nan=False)
        replace_text(self.directory / f"{name}.json", text + "\n")
