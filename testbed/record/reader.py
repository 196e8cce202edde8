"""The record of a run: one directory that says what was requested, what was measured and how far to trust it.

    <record>/
      spec.yaml           the resolved spec: every default spelled out
      plan.json           nodes, addresses, tc commands, expected bytes, predicted times
      environment.json    commit, versions, kernel, CPU, sysctls, tc read-back
      calibration.json    what each link was measured to do before the run
      iterations.parquet  one row per worker and iteration (testbed.record.frames)
      buckets.parquet     one row per worker, iteration and bucket (BUCKET_SCHEMA)
      links.parquet       one row per link direction and sample (LINK_SCHEMA)
      backlog.parquet     one row per probe of a link whose queue held packets (BACKLOG_SCHEMA)
      machine.parquet     one row per sample of the machine's cores and network code (MACHINE_SCHEMA)
      changes.parquet     one row per setting of a link direction that changed meanwhile (CHANGE_SCHEMA)
      stages.parquet      one row per worker and stretch of starting or reading data (STAGE_SCHEMA)
      waits.parquet       one row per stretch in which threads of a host waited for a core (WAIT_SCHEMA)
      SHA256SUMS          checksums of the tables, which are compared when one is read (`sha256sum -c SHA256SUMS`)
      summary.json        the contract for scripts (testbed.record.summary)
      report.html         the same for people; report.md the same as Markdown
      report-figures/     its figures as SVG and PNG, where `testbed report` wrote them
      captures/<link>.pcapng  where `testbed run --capture` requested it
      prometheus/         configuration, rules and data, where `testbed run --prometheus` requested it
      logs/<process>.log

Times in the frames are wall seconds since the run's epoch (`summary.epoch_s` on CLOCK_MONOTONIC); with
dilation k, virtual time is wall time divided by k. Everything in `summary.json` is in virtual seconds.

:func:`load` reads a finished one; testbed.record.writer writes it while the run goes on.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import ValidationError

from testbed.errors import SpecError
from testbed.record.frames import FRAMES
from testbed.record.migrations import LATER_FRAMES, migrated, with_behind, with_host_to_device, with_sources
from testbed.record.summary import Summary

DOCUMENTS: Final = ("plan", "environment", "calibration")
CHECKSUMS: Final = "SHA256SUMS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A finished run, read from its directory."""

    path: Path
    summary: Summary
    spec_yaml: str
    plan: dict[str, Any]
    environment: dict[str, Any]
    calibration: dict[str, Any]
    iterations: pl.DataFrame
    buckets: pl.DataFrame
    links: pl.DataFrame
    backlog: pl.DataFrame
    machine: pl.DataFrame
    changes: pl.DataFrame
    stages: pl.DataFrame
    waits: pl.DataFrame


def require_record(path: Path) -> None:
    """Raise SpecError unless this is the directory of a finished run, with everything in it."""
    if not path.is_dir():
        raise SpecError(f"{path}: no such directory; give the directory of a record, as `testbed run` prints it")
    frames = [f"{name}.parquet" for name in FRAMES if name not in LATER_FRAMES]
    documents = [f"{name}.json" for name in DOCUMENTS]
    needed = ["spec.yaml", "summary.json", *documents, *frames]
    missing = [name for name in needed if not (path / name).is_file()]
    if len(missing) == len(needed):
        raise SpecError(f"{path} is not a record: it has neither spec.yaml nor summary.json")
    if "summary.json" in missing and "spec.yaml" not in missing:
        raise SpecError(f"{path}: the run did not finish (no summary.json); its logs are in {path / 'logs'}")
    if missing:
        raise SpecError(f"{path} is not a whole record: {', '.join(missing)} missing")


def load(path: Path) -> Record:
    """Read a record. Raises SpecError that says which file is missing or cannot be read."""
    require_record(path)
    return Record(
        path=path,
        summary=load_summary(path / "summary.json"),
        spec_yaml=_load_text(path / "spec.yaml"),
        plan=_load_json(path / "plan.json"),
        environment=_load_json(path / "environment.json"),
        calibration=_load_json(path / "calibration.json"),
        iterations=load_frame(path, "iterations"),
        buckets=load_frame(path, "buckets"),
        links=load_frame(path, "links"),
        backlog=load_frame(path, "backlog"),
        machine=load_frame(path, "machine"),
        changes=load_frame(path, "changes"),
        stages=load_frame(path, "stages"),
        waits=load_frame(path, "waits"),
    )


def results_of(output: Path, *, name: str, spec_sha256: str) -> list[Summary]:
    """The summaries of every run of one resolved spec below `output`, oldest first. What cannot be read is not one."""
    found = []
    for path in output.glob(f"{name}-{spec_sha256[:8]}-*/summary.json"):
        with suppress(SpecError):
            summary = load_summary(path)
            if summary.spec_sha256 == spec_sha256:
                found.append(summary)
    return sorted(found, key=lambda summary: (summary.started_at, summary.run_id))


def _load_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error


def _load_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_load_text(path))
    except ValueError as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise SpecError(f"{path} cannot be read: it holds no JSON object")
    return document


def load_summary(path: Path) -> Summary:
    """A record's summary.json, which says where it is now, not where it was made. Raises SpecError when it cannot be
    read, or is of another version."""
    try:
        document = migrated(_load_json(path))
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from error
    try:
        return Summary.model_validate({**document, "record": str(path.parent)})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{path}: {field}: {first['msg']}") from error


def _checksums(record: Path) -> dict[str, str]:
    """By file, as sha256sum writes them; none where the record was made before there were any, or is being made."""
    path = record / CHECKSUMS
    lines = _load_text(path).splitlines() if path.exists() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def load_frame(record: Path, name: str) -> pl.DataFrame:
    """The table of that name (testbed.record.frames) of a record, in this version's columns; empty where the record was
    made before there was such a table. Raises SpecError when it cannot be read, or has other columns."""
    path, schema = record / f"{name}.parquet", dict(FRAMES[name])
    if name in LATER_FRAMES and not path.exists():
        return pl.DataFrame(schema=schema)
    try:
        content = path.read_bytes()
        expected = _checksums(record).get(path.name)
        if expected not in (None, hashlib.sha256(content).hexdigest()):
            raise SpecError(
                f"{path} is not what the run wrote, says {CHECKSUMS} beside it; get it from a copy, or remove "
                f"{CHECKSUMS} if you have changed it"
            )
        frame = pl.read_parquet(content)
    # Polars panics at some damage; that is no Exception.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if name == "iterations":
        frame = with_host_to_device(frame)
    if name == "changes":
        frame = with_sources(frame)
    if name == "waits":
        frame = with_behind(frame)
    if dict(frame.schema) != schema:
        raise SpecError(f"{path} has other columns than a record of this version: {', '.join(frame.columns)}")
    return frame
