"""Builds the C programs beside this file, once for each state of their source.

`python -m testbed.system.native.build` does it ahead of the first run; `tools/setup.sh` calls it.
"""

from pathlib import Path
from typing import Final

from switch_agg.errors import UnsupportedError
from switch_agg.native.build import build
from switch_agg.native.layout import Layout
from testbed.errors import MissingRequirementError
from testbed.system.native.layouts import LAYOUTS

_FOLDER: Final = Path(__file__).resolve().parent


def kernel_program(name: str, *layouts: Layout) -> Path:
    """The object of `<name>.bpf.c` for the kernel. Raises UnsupportedError where it cannot be built."""
    return build(_FOLDER / f"{name}.bpf.c", "bpf", layouts=layouts)


def program(name: str) -> Path:
    """The executable of `<name>.c`, built if there is none of this source yet.

    Raises MissingRequirementError when it has to be built and there is no compiler, or the compiler refuses.
    """
    try:
        return build(_FOLDER / f"{name}.c", "program", layouts=LAYOUTS[name])
    except UnsupportedError as error:
        raise MissingRequirementError(str(error)) from error


if __name__ == "__main__":
    for each in sorted(_FOLDER.glob("*.c")):
        if each.stem in LAYOUTS:
            program(each.stem)
