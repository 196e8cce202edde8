"""The shared libraries that workers load, built ahead: in a container there is no compiler, and nothing to write to.

`python -m testbed.system.native.libraries` builds them and prints where they are, one a line.
"""

import sys
from pathlib import Path

from switch_agg.errors import UnsupportedError
from switch_agg.native.worker import build_library
from testbed.errors import MissingRequirementError
from transports.channels.base import CHANNELS
from transports.compression.base import COMPRESSORS


def build_libraries() -> list[Path]:
    """Raises MissingRequirementError where there is no compiler, with the fix."""
    builders = dict.fromkeys(builder for value in (*CHANNELS, *COMPRESSORS) for builder in value.native_libraries)
    try:
        return [builder() for builder in (build_library, *builders)]
    except UnsupportedError as error:
        raise MissingRequirementError(str(error)) from error


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in build_libraries())
