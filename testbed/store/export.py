"""One table of many records, as CSV or Parquet."""

from io import BytesIO
from pathlib import Path
from typing import Final, Literal

import polars as pl

from testbed.errors import SpecError
from testbed.record.reader import load_frame
from testbed.record.writer import replace_bytes
from testbed.store.index import Index

Table = Literal["runs", "iterations", "buckets", "links"]
SUFFIXES: Final = (".csv", ".parquet")


def write_table(index: Index, file: Path, *, table: Table = "runs", condition: str = "") -> int:
    """Write the runs for which an SQL condition holds, oldest first, or all rows of one of their tables; the number of
    rows. Records are named by whole paths. Raises SpecError, MissingRequirementError for a file that cannot be
    written; nothing is written then."""
    if file.suffix not in SUFFIXES:
        raise SpecError(f"{file}: a table is written as {' or '.join(SUFFIXES)}")
    runs = index.runs(condition)[::-1]
    if not runs:
        raise SpecError(f"there are no such runs below {index.directory}")
    if table == "runs":
        rows = [{**run, "record": str((index.directory / run["record"]).absolute())} for run in runs]
        frame = pl.DataFrame(rows, infer_schema_length=None)
    else:
        frames = [
            load_frame(index.directory / run["record"], table).select(pl.lit(run["run_id"]).alias("run_id"), pl.all())
            for run in runs
        ]
        frame = pl.concat(frames)
    written = BytesIO()
    if file.suffix == ".csv":
        frame.write_csv(written)
    else:
        frame.write_parquet(written)
    replace_bytes(file, written.getvalue())
    return frame.height
