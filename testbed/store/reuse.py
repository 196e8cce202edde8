"""Which results of a question may stand for a run that would be made here and now.

A result is the answer of one spec, one version of the code, one machine, what the spec left to that machine, one
meaning of its numbers and, where there are any, one program and one image. Where one of them is another, the number may
be another, and nobody would see why. Where somebody changed links while it ran, it is the answer of no spec.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from testbed.errors import SpecError
from testbed.store.documents import Origin, origin, recorded_schema_version

if TYPE_CHECKING:
    from testbed.record.summary import Summary

Reuse = Literal["same", "any", "none"]
"""Of the results that a spec has: those that would be made alike here and now; all of them; none."""


def unlike(record: Path, here: Origin) -> tuple[str, ...]:
    """In what a record differs from what would be made here now, its spec apart: nothing where it may be reused."""
    from testbed.record.summary import SCHEMA_VERSION  # commands name what there is without the models

    try:
        made, schema_version = origin(record), recorded_schema_version(record)
    except SpecError:
        return ("a record that does not say where it was made",)
    schema = () if schema_version == SCHEMA_VERSION else (f"another schema (version {schema_version})",)
    return (*made.unlike(here), *schema)


def changed_manually(result: "Summary") -> bool:
    """Whether somebody changed its links while it ran, which running its spec again will not do."""
    return any(change.source == "manual" for change in result.changes)


def made_otherwise(result: "Summary", here: Origin) -> tuple[str, ...]:
    """In what a result differs from what running its spec here now would make: nothing where it may stand for that."""
    manual = ("links changed manually while it ran",) if changed_manually(result) else ()
    captured = ("packets captured while it ran",) if result.captures else ()
    return (*unlike(Path(result.record), here), *manual, *captured)
