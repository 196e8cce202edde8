"""What a summary of an older version says, in this version's words. Pure.

This file, as the changelog, names what things were called.
"""

from typing import Any, Final

from testbed.record.summary import SCHEMA_VERSION

OLDEST_VERSION: Final = 2


def migrated(document: dict[str, Any]) -> dict[str, Any]:
    """The document in this version; unchanged where it is of it already.

    Raises ValueError for a version that is not known.
    """
    version = document.get("schema_version")
    if version == OLDEST_VERSION:
        others = {key: value for key, value in document.items() if key != "unshared_memory_bytes"}
        return {**others, "uss_bytes": document.get("unshared_memory_bytes"), "schema_version": SCHEMA_VERSION}
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}; this version reads {OLDEST_VERSION} to {SCHEMA_VERSION}")
    return document
