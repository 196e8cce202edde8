"""The shared libraries that workers load, built ahead: in a container there is no compiler, and nothing to write to.

`python -m testbed.system.native.libraries` builds them and prints where they are, one a line.
"""

import sys
from pathlib import Path

from switch_agg.errors import UnsupportedError
from switch_agg.native.build import FOLDER, build
from testbed.errors import EnvironmentLacksError
from transports.channels._tcp import program
from transports.channels._udp import native


def build_libraries() -> list[Path]:
    """Raises EnvironmentLacksError where there is no compiler, with the cure."""
    try:
        return [build(source, "library") for source in (FOLDER / "worker.c", program.SOURCE, native.SOURCE)]
    except UnsupportedError as error:
        raise EnvironmentLacksError(str(error)) from error


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in build_libraries())
