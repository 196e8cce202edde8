"""Which sources of this package a process runs: a container's must be those of the controller that talks to it."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("switch_agg", "testbed", "transports")


@cache
def sources_digest() -> str:
    """SHA-256 of every Python source of the package that this process would import, with their paths."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        for folder in map(Path, spec.submodule_search_locations or ()):
            for path in sorted(folder.rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
