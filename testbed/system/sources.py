"""Which sources of this package a process runs: a container's must be those of the controller that talks to it, and
results of other sources are not taken for this one's."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("switch_agg", "testbed", "transports")
_SUFFIXES: Final = (".py", ".c", ".h")
_DATA: Final = "recordings"
"""Folders whose files decide how long networks compute."""


@cache
def code_digest() -> str:
    """SHA-256 of everything of the package that can change a result: Python, C and its headers, and what was recorded
    of networks, with their paths; as it was when it was first called in this process, which is when that has just
    imported what it runs."""
    return _digest()


def code_changed() -> bool:
    """Whether the files of :func:`code_digest` are others now, edited or checked out: what this process has imported is
    not what it would import or compile next."""
    begun = code_digest()
    try:
        return _digest() != begun
    except OSError:  # a file went while they were read
        return True


def _digest() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        for folder in map(Path, spec.submodule_search_locations or ()):
            # Hidden files are what a compiler is being given, and editors' locks.
            for path in sorted(each for each in folder.rglob("[!.]*.*") if _counts(each)):
                digest.update(f"{package}/{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    return path.suffix in _SUFFIXES or path.parent.name == _DATA
