"""One table of many records, as CSV or Parquet."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from testbed.errors import SpecError
from testbed.record.frames import FRAMES
from testbed.record.reader import load_frame
from testbed.record.writer import replace_bytes
from testbed.store.index import COLUMNS, Index, Problem

Table = Literal["runs", "iterations", "buckets", "links"]
SUFFIXES: Final = (".csv", ".parquet")
_TYPES: Final = {"TEXT": pl.String, "INTEGER": pl.Int64, "REAL": pl.Float64}
"""Of SQLite."""


class Rows(NamedTuple):
    """Of a table of many runs."""

    frame: pl.DataFrame
    left_out: Sequence[Problem]
    """Runs whose table cannot be read."""


def write_table(index: Index, file: Path, *, table: Table = "runs", condition: str = "") -> Rows:
    """Write the runs for which an SQL condition holds, oldest first, or all rows of one of their tables; what was
    written. Records are named by whole paths. Raises SpecError, MissingRequirementError for a file that cannot be
    written; nothing is written then."""
    if file.suffix not in SUFFIXES:
        raise SpecError(f"{file}: a table is written as {' or '.join(SUFFIXES)}")
    runs = index.runs(condition)[::-1]
    if not runs:
        raise SpecError(f"there are no such runs below {index.directory}")
    rows = Rows(runs_frame(index.directory, runs), ()) if table == "runs" else rows_of(index.directory, runs, table)
    written = BytesIO()
    if file.suffix == ".csv":
        rows.frame.write_csv(written)
    else:
        rows.frame.write_parquet(written)
    replace_bytes(file, written.getvalue())
    return rows


def runs_frame(directory: Path, runs: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """A row for each of an index' runs, with the whole path of its record."""
    rows = [{**run, "record": str((directory / run["record"]).absolute())} for run in runs]
    return pl.DataFrame(rows, schema={column.name: _TYPES[column.type] for column in COLUMNS})


def rows_of(directory: Path, runs: Sequence[Mapping[str, Any]], table: str) -> Rows:
    """All rows of that table (testbed.record.frames) of an index' runs, each with its run_id, the run's outcome and the
    dilation, by which its times in wall seconds are to be divided for virtual ones. Raises SpecError where there are
    runs, and the table of none of them can be read."""
    same = {"run_id": pl.String, "outcome": pl.String, "dilation": pl.Float64}
    frames = [pl.DataFrame(schema={**same, **FRAMES[table]})]
    left_out: list[Problem] = []
    for run in runs:
        try:
            frames.append(_rows(directory, run, table))
        except SpecError as error:
            if len(left_out) == len(runs) - 1:
                raise
            left_out.append(Problem(run["record"], str(error)))
    return Rows(pl.concat(frames), left_out)


def _rows(directory: Path, run: Mapping[str, Any], table: str) -> pl.DataFrame:
    same = [
        pl.lit(run["run_id"]).alias("run_id"),
        pl.lit(run["outcome"]).alias("outcome"),
        pl.lit(run["dilation"], pl.Float64).alias("dilation"),
    ]
    return load_frame(directory / run["record"], table).select(*same, pl.all())
