"""Builds the C programs beside this file, once for each state of their source.

`python -m testbed.links.native.build` does it ahead of the first run; `tools/setup.sh` calls it.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from testbed.errors import EnvironmentLacksError

_FOLDER: Final = Path(__file__).resolve().parent
BUILD_FOLDER: Final = _FOLDER / "build"
_FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread")
_LIBRARIES: Final = ("-lm",)
CURE: Final = "apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev"


def program(name: str) -> Path:
    """The executable of `<name>.c`, built if there is none of this source yet.

    Raises EnvironmentLacksError when it has to be built and there is no compiler, or the compiler refuses.
    """
    source = _FOLDER / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes() + " ".join((*_FLAGS, *_LIBRARIES)).encode()).hexdigest()[:12]
    built = BUILD_FOLDER / f"{name}-{digest}"
    if not built.exists():
        _compile(source, built)
    return built


def _compile(source: Path, built: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise EnvironmentLacksError(f"no C compiler to build {source.name} with: {CURE}")
    # Under a name of its own until it is whole: other processes may build the same.
    partial = built.with_name(f".{built.name}.{os.getpid()}")
    try:
        built.parent.mkdir(exist_ok=True)
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", str(partial), str(source), *_LIBRARIES],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise EnvironmentLacksError(f"{compiler} cannot build {source.name} ({CURE}):\n{done.stderr.strip()}")
        partial.replace(built)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {built}: {error}; make it writable or build it as root") from error
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    for each in sorted(_FOLDER.glob("*.c")):
        program(each.stem)
