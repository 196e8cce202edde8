"""The specs that come with the package, and which file a name on a command line is."""

from pathlib import Path
from typing import Final

from testbed.errors import SpecError

_FOLDER: Final = Path(__file__).parents[2] / "experiments"
"""Beside the package, wherever that is: by its name, a folder of the user's would be found first."""


def shipped_folder() -> Path | None:
    """Where the specs are that come with this package; None where it is not installed with them."""
    return _FOLDER if _FOLDER.is_dir() else None


def shipped_specs() -> dict[str, Path]:
    """The file of each, by its name without `.yaml`."""
    folder = shipped_folder()
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def spec_path(given: Path) -> Path:
    """A file as it was named, or the spec of that name that comes with the package: `quickstart`.

    Only a name alone is looked up, and only where there is no such file: a path with a folder or a suffix in it always
    means the file. Raises SpecError for a name that is neither.
    """
    known = shipped_specs()
    if given.suffix and given.stem in known and not given.exists():
        raise SpecError(f"{given}: there is no such file; the spec that comes with the package is called {given.stem}")
    if given.is_file() or given.suffix or len(given.parts) != 1:
        return given
    if given.name not in known:
        raise SpecError(
            f"{given}: there is no such file, and no spec of that name comes with the package: {', '.join(known)}"
        )
    return known[given.name]
