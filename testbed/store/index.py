"""An index over the records below a directory: SQLite, made of them and made again from them at will.

    results/
      quickstart-4edd9437-261122t110536-a659db/     a record: what is true
      index.db                                      what is known of all records, for quick answers

The records are the truth; the index holds nothing that they do not. Every reading begins with a look at what has
changed (:meth:`Index.refresh`), by the names, times and sizes of their documents, so that nobody has to tell the index
of a record that came or went. Several programs may do so at once: the database is in WAL mode, in which readers and a
writer do not wait for each other (https://www.sqlite.org/wal.html), and each refresh is one transaction.
"""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from testbed.errors import MissingRequirementError, SpecError
from testbed.record.summary import SCHEMA_VERSION
from testbed.store.documents import origin, recorded_schema_version, resolved_spec

if TYPE_CHECKING:
    from testbed.record.summary import Summary

INDEX_VERSION: Final = 200 + SCHEMA_VERSION
"""Of the tables below and of the summaries that can be read; an index of another version is made again."""
_BUSY_TIMEOUT_S: Final = 60.0
_CHUNK: Final = 500
"""Records read in one transaction: so long another writer waits at most."""


class Column(NamedTuple):
    """A column of the table `runs`."""

    name: str
    type: str
    meaning: str


COLUMNS: Final = (
    Column("run_id", "TEXT", "as in status.json and summary.json"),
    Column("record", "TEXT", "the record's directory, below the index'"),
    Column("name", "TEXT", "of the spec"),
    Column("started_at", "TEXT", "ISO 8601, UTC"),
    Column("outcome", "TEXT", "valid, degraded, invalid, failed, unsupported"),
    Column("reason", "TEXT", "the first of its reasons, if it is not valid"),
    Column("spec_sha256", "TEXT", "of the resolved spec: alike for repetitions"),
    Column("schema_version", "INTEGER", "of its summary.json"),
    Column("commit_id", "TEXT", "of the testbed that ran it"),
    Column("machine", "TEXT", "processor, cores and kernel"),
    Column("workers", "INTEGER", ""),
    Column("workload", "TEXT", "kind, and its model or trace"),
    Column("topology", "TEXT", ""),
    Column("collective", "TEXT", ""),
    Column("channel", "TEXT", ""),
    Column("stack", "TEXT", "a baseline library in their stead"),
    Column("compression", "TEXT", ""),
    Column("link_rate", "TEXT", "as the spec has it"),
    Column("link_delay", "TEXT", "as the spec has it"),
    Column("dilation", "REAL", "times below are virtual seconds"),
    Column("iterations", "INTEGER", "measured"),
    Column("iteration_time_s", "REAL", "mean"),
    Column("iteration_p10_s", "REAL", ""),
    Column("iteration_p90_s", "REAL", ""),
    Column("compute_time_s", "REAL", "mean, as are the other parts"),
    Column("waiting_time_s", "REAL", "for slower workers"),
    Column("exposed_communication_s", "REAL", ""),
    Column("samples_per_s", "REAL", "of all workers"),
    Column("scaling_factor", "REAL", "T_n / (n T_1)"),
    Column("network_efficiency", "REAL", ""),
    Column("allreduce_time_s", "REAL", "of an iteration"),
    Column("allreduce_bound_s", "REAL", "of the task"),
    Column("utilization_mean", "REAL", "mean over link directions, 0 to 1"),
    Column("loss", "REAL", "mean over the last tenth of the iterations"),
    Column("spec", "TEXT", "the resolved spec as JSON: json_extract(spec, '$.link.rate')"),
)
_NAMES: Final = tuple(column.name for column in COLUMNS)
_AS_MEASURED: Final = (
    "run_id",
    "name",
    "started_at",
    "outcome",
    "spec_sha256",
    "dilation",
    "compute_time_s",
    "waiting_time_s",
    "exposed_communication_s",
    "samples_per_s",
    "scaling_factor",
    "network_efficiency",
)
"""Columns that a summary has under the same name."""


class Problem(NamedTuple):
    """A directory that looks like a record and cannot be read as one."""

    record: str
    problem: str


class Refreshed(NamedTuple):
    """What a refresh found to do."""

    num_read: int
    num_gone: int


_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_CALLED: Final = re.compile(r'\bAS\s+"((?:[^"]|"")*)"', re.IGNORECASE)


class Index:
    """The index of one directory of records. Opened for one thread."""

    def __init__(self, directory: Path) -> None:
        """Raises SpecError when there is no such directory, MissingRequirementError when it cannot be written."""
        if not directory.is_dir():
            raise SpecError(f"{directory}: no such directory; `testbed run --output` makes records in one")
        self.directory = directory
        self.path = directory / "index.db"
        try:
            self._database = self._open()
        except sqlite3.DatabaseError as error:
            raise MissingRequirementError(
                f"cannot use {self.path}: {error}; it holds nothing that the records do not: remove it, or let the "
                "directory be written"
            ) from error

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with _writing(database):
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != INDEX_VERSION:
                # Nothing is lost: it is made of the records.
                for table in ("runs", "problems"):
                    database.execute(f"DROP TABLE IF EXISTS {table}")
                columns = ", ".join(f"{name} {type_}" for name, type_, _ in COLUMNS)
                database.execute(f"CREATE TABLE runs ({columns}, stamp TEXT, PRIMARY KEY (record))")
                database.execute("CREATE INDEX runs_spec ON runs (spec_sha256)")
                database.execute("CREATE TABLE problems (record TEXT PRIMARY KEY, problem TEXT, stamp TEXT)")
                database.execute(f"PRAGMA user_version = {INDEX_VERSION}")
        return database

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def refresh(self) -> Refreshed:
        """Read what is new or has changed, forget what is gone. A record that cannot be read becomes a problem, and
        disturbs no other."""
        known = {
            record: stamp
            for table in ("runs", "problems")
            for record, stamp in self._database.execute(f"SELECT record, stamp FROM {table}")  # noqa: S608 (ours)
        }
        present = dict(_stamps(self.directory))  # afterwards: what another process has read meanwhile is not gone
        gone = [record for record in known if record not in present]
        changed = [record for record, stamp in present.items() if known.get(record) != stamp]
        for begin in range(0, len(changed), _CHUNK):
            rows = [self._row(record) for record in changed[begin : begin + _CHUNK]]
            with _writing(self._database):
                for row in rows:
                    self._store(row, present)
        if gone:
            with _writing(self._database):
                for record in gone:
                    self._forget(record)
        return Refreshed(len(changed), len(gone))

    def rebuild(self) -> Refreshed:
        """Read every record again, then forget everything and remember that: readers see all of the old index or all of
        the new one. What deletions have left that did not come to their end is removed."""
        _remove_left(self.directory)
        present = dict(_stamps(self.directory))
        rows = [self._row(record) for record in present]
        with _writing(self._database):
            self._database.execute("DELETE FROM runs")
            self._database.execute("DELETE FROM problems")
            for row in rows:
                self._store(row, present)
        return Refreshed(len(rows), 0)

    def problems(self) -> list[Problem]:
        """Directories that look like records and are none, by name."""
        return [Problem(*row) for row in self._database.execute("SELECT record, problem FROM problems ORDER BY record")]

    def runs(
        self, condition: str = "", parameters: Sequence[object] = (), *, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Runs for which an SQL condition over the columns holds, with parameters for its `?`, newest first, at most so
        many.

        Raises SpecError when the condition is none.
        """
        where = f" WHERE ({condition}\n)" if condition else ""  # it may end in a comment
        names = ", ".join(_NAMES)
        statement = f"SELECT {names} FROM runs{where} ORDER BY started_at DESC, run_id DESC"  # noqa: S608 (read only)
        return self.query(statement if limit is None else f"{statement} LIMIT {limit}", parameters)[1]

    def query(self, statement: str, parameters: Sequence[object] = ()) -> tuple[list[str], list[dict[str, Any]]]:
        """Columns and rows of one SQL statement, which can only read, with parameters for `?`; bytes as hexadecimal
        digits, and infinity, of which JSON knows nothing, as None. Raises SpecError when it is none, writes, or has two
        columns of one name."""
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as reading:
            reading.row_factory = sqlite3.Row
            reading.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # another database could be written to
            try:
                _require_names(statement)
                cursor = reading.execute(statement, parameters)
                names = [name for name, *_ in cursor.description or ()]
                if twice := sorted({name for name in names if names.count(name) > 1}):
                    raise SpecError(f"several columns are called {', '.join(twice)}; write AS, and another name")
                rows = [{name: _plain(value) for name, value in dict(row).items()} for row in cursor]
            except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
                raise SpecError(f"{error}; columns of `runs`: {', '.join(_NAMES)}") from error
        return names, rows

    def find(self, run: str) -> dict[str, Any]:
        """The run whose id or record begins so, `last` for the newest.

        Raises SpecError when there is none or more than one.
        """
        if not run:
            raise SpecError("a run's name is empty; write the beginning of its id or of its record, or `last`")
        if run == "last":
            found = self.runs(limit=1)
        elif not (found := self.runs("run_id = ? OR record = ?", [run] * 2)):
            begins = " OR ".join(f"substr({name}, 1, length(?)) = ?" for name in ("run_id", "record"))
            found = self.runs(begins, [run] * 4, limit=6)
        if not found:
            raise SpecError(f"{run}: no run below {self.directory} has an id or a record that begins so")
        if len(found) > 1:
            raise SpecError(f"{run}: several runs begin so: {', '.join(each['run_id'] for each in found[:5])}")
        return found[0]

    def delete(self, record: str) -> None:
        """Remove a record from the disk and the index. Raises SpecError for what is no record of this directory."""
        path = self.directory / record
        if record not in dict(_stamps(self.directory)):
            raise SpecError(f"{record}: not a record of {self.directory}")
        # Out of sight first: a reader sees a whole record or none.
        doomed = path.with_name(f"{_DELETED}{path.name}")
        try:
            path.rename(doomed)
        except OSError as error:
            raise MissingRequirementError(f"cannot delete {path}: {error.strerror}") from error
        with _writing(self._database):
            self._forget(record)
        try:
            shutil.rmtree(doomed)
        except FileNotFoundError:
            pass  # another process, which made the index again, has removed it
        except OSError as error:
            raise MissingRequirementError(
                f"{record} is no record any more, and what is left of it in {doomed} stays: {error.strerror}"
            ) from error

    def _row(self, record: str) -> dict[str, Any] | Problem:
        if "\\x" in record and not (self.directory / record).exists():
            return Problem(record, "the directory's name is not UTF-8: rename it")
        try:
            return _row_of(self.directory / record, record)
        except SpecError as error:
            return Problem(record, str(error).removeprefix(f"{self.directory / record}/"))
        except Exception as error:  # noqa: BLE001 - whatever a record holds, it disturbs no other
            return Problem(record, f"{type(error).__name__}: {error}")

    def _store(self, row: Mapping[str, Any] | Problem, stamps: Mapping[str, str]) -> None:
        record = row.record if isinstance(row, Problem) else row["record"]
        self._forget(record)
        if isinstance(row, Problem):
            self._database.execute("INSERT INTO problems VALUES (?, ?, ?)", (*row, stamps[record]))
            return
        marks = ", ".join("?" * (len(_NAMES) + 1))
        values = (*(row[name] for name in _NAMES), stamps[record])
        try:
            self._database.execute(f"INSERT INTO runs VALUES ({marks})", values)  # noqa: S608 (question marks)
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError, UnicodeError) as error:
            self._store(Problem(record, f"a value that no column takes: {error}"), stamps)

    def _forget(self, record: str) -> None:
        self._database.execute("DELETE FROM runs WHERE record = ?", (record,))
        self._database.execute("DELETE FROM problems WHERE record = ?", (record,))


def _require_names(statement: str) -> None:
    """Raises SpecError for a word in double quotes that names nothing: SQLite takes it for a text, which is greater
    than any number, so that a mistyped column would select every run."""
    code = _TEXT.sub("''", statement)
    called = {name.lower() for name in (*_NAMES, "runs", *_CALLED.findall(code))}
    for name in _QUOTED.findall(code):
        if name.lower() not in called:
            raise SpecError(
                f"\"{name}\" is no column; columns of `runs`: {', '.join(_NAMES)}; texts are in 'single quotes'"
            )


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not isfinite(value) else value


@contextmanager
def _writing(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction, which waits for another writer's first."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


_READ: Final = ("summary.json", "spec.yaml", "environment.json")
_DELETED: Final = ".deleted-"


def _stamps(directory: Path) -> Iterator[tuple[str, str]]:
    """Every directory with a spec or a summary in it, and what its documents are known by: times and sizes."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            stamps = [_stamp(Path(entry.path, name)) for name in _READ]
            if stamps[0] or stamps[1]:
                name = os.fsencode(entry.name).decode(errors="backslashreplace")
                yield name, " ".join(stamp or "none" for stamp in stamps)


def _remove_left(directory: Path) -> None:
    """Of records whose deletion was interrupted; what cannot be removed stays, out of sight."""
    for left in directory.glob(f"{_DELETED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _stamp(path: Path) -> str | None:
    """None: it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    return f"{status.st_mtime_ns}/{status.st_size}/{status.st_ino}"


def _row_of(path: Path, record: str) -> dict[str, Any]:
    """Of one record. Raises SpecError when it cannot be read."""
    if not (path / "summary.json").exists():
        raise SpecError("the run has not finished: there is no summary.json")
    from testbed.record.reader import load_summary  # where nothing is new a list needs no polars

    summary = load_summary(path / "summary.json")
    spec, where = resolved_spec(path), origin(path)
    return {
        **dict.fromkeys(_NAMES),
        **_requested(spec),
        **_measured(summary),
        "schema_version": recorded_schema_version(path),
        "commit_id": where.commit,
        "machine": where.machine,
        "record": record,
    }


def _requested(spec: Mapping[Any, Any]) -> dict[str, Any]:
    """What the spec says. It is resolved: kinds are spelled out."""
    link = spec.get("link")
    link = link if isinstance(link, dict) else {}
    workload = spec.get("workload")
    what = workload if isinstance(workload, dict) else {}
    subject = what.get("model") or what.get("trace")
    return {
        "workers": spec.get("workers"),
        "workload": " ".join(str(part) for part in (_kind(workload), subject) if isinstance(part, str)) or None,
        **{key: _kind(spec.get(key)) for key in ("topology", "collective", "channel", "stack", "compression")},
        "link_rate": _text(link.get("rate")),
        "link_delay": _text(link.get("delay")),
        "spec": json.dumps(spec, default=str),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _kind(value: object) -> str | None:
    return _text(value.get("kind") if isinstance(value, dict) else value)


def _measured(summary: "Summary") -> dict[str, Any]:
    time, allreduce = summary.iteration_time_s, summary.allreduce
    shares = [link.utilization_mean for link in summary.links if link.utilization_mean is not None]
    return {
        **{name: getattr(summary, name) for name in _AS_MEASURED},
        "reason": summary.reasons[0] if summary.reasons else None,
        "iterations": summary.num_iterations,
        "iteration_time_s": time.mean if time else None,
        "iteration_p10_s": time.p10 if time else None,
        "iteration_p90_s": time.p90 if time else None,
        "allreduce_time_s": allreduce.time_s if allreduce else None,
        "allreduce_bound_s": allreduce.bound_s if allreduce else None,
        "utilization_mean": sum(shares) / len(shares) if shares else None,
        "loss": summary.loss.end if summary.loss else None,
    }
