"""Where this package keeps, for the calling user, what is made once: measurements, and what a compiler made."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/ina-testbed`, by default in `~/.cache` (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "ina-testbed"
