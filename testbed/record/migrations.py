"""What an older record says, in this version's words. Pure.

This file, as the changelog, names what things were called.
"""

from typing import Any, Final

import polars as pl

from testbed.record.summary import SCHEMA_VERSION

OLDEST_VERSION: Final = 2
_SOURCES: Final = {"hand": "manual"}
"""Of a change: what version 2 called it."""
LATER_FRAMES: Final = frozenset({"stages", "waits"})
"""Tables that older records of these versions do not have."""


def migrated(document: dict[str, Any]) -> dict[str, Any]:
    """The document in this version; unchanged where it is of it already.

    Raises ValueError for a version that is not known.
    """
    version = document.get("schema_version")
    if version == SCHEMA_VERSION:
        return document
    if version not in range(OLDEST_VERSION, SCHEMA_VERSION):
        raise ValueError(f"schema_version is {version!r}; this version reads {OLDEST_VERSION} to {SCHEMA_VERSION}")
    found = dict(document)
    if version == OLDEST_VERSION:
        found["uss_bytes"] = found.pop("unshared_memory_bytes", None)
        found["background"] = [_renamed(each, "asked", "requested") for each in found.get("background", [])]
        found["changes"] = [
            {**each, "source": _SOURCES.get(each.get("source"), each.get("source"))}
            for each in found.get("changes", [])
        ]
    if found.get("outcome") == "valid":  # of others it is not known which were notes
        found |= {"reasons": [], "notes": found.get("reasons", [])}
    return {**found, "schema_version": SCHEMA_VERSION}


def _renamed(each: dict[str, Any], before: str, now: str) -> dict[str, Any]:
    return {now if key == before else key: value for key, value in each.items()}


def with_sources(changes: pl.DataFrame) -> pl.DataFrame:
    """CHANGE_SCHEMA, with this version's words for who changed a link."""
    if "source" not in changes.columns:
        return changes
    return changes.with_columns(pl.col("source").replace(_SOURCES))


def with_host_to_device(iterations: pl.DataFrame) -> pl.DataFrame:
    """ITERATION_SCHEMA, of a record that was made before copying to the device was a stage of its own: it took no time
    apart."""
    if "host_to_device_end_s" in iterations.columns or "data_end_s" not in iterations.columns:
        return iterations
    at = iterations.columns.index("data_end_s") + 1
    return iterations.insert_column(at, iterations["data_end_s"].alias("host_to_device_end_s"))


def with_behind(waits: pl.DataFrame) -> pl.DataFrame:
    """WAIT_SCHEMA, of a record that was made before it was known whom threads that compute wait behind: no thread of
    their own process, as was taken then."""
    if "behind" in waits.columns or "computing" not in waits.columns:
        return waits
    return waits.insert_column(waits.columns.index("computing") + 1, pl.lit(value=False).alias("behind"))
