"""The shared libraries that workers load, built ahead: in a container there is no compiler, and nothing to write to.

`python -m testbed.system.native.libraries` builds them and prints where they are, one a line.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from switch_agg.errors import UnsupportedError
from switch_agg.native.worker import build_library
from testbed.errors import MissingRequirementError
from transports.channels.base import CHANNELS, Channel
from transports.compression.base import COMPRESSORS, Compressor


def build_libraries() -> list[Path]:
    """Raises MissingRequirementError where there is no compiler, with the fix."""
    return _built((build_library, *_builders((*CHANNELS, *COMPRESSORS))))


def require_libraries(values: Iterable[Channel | Compressor]) -> None:
    """Those that these load, built if need be: without them they would do the same in Python, at several times
    the cost, and a run would measure that. Raises MissingRequirementError where they cannot be built, with the fix."""
    _built(_builders(map(type, values)))


def _builders(values: Iterable[type[Channel] | type[Compressor]]) -> Iterable[Callable[[], Path]]:
    return dict.fromkeys(builder for value in values for builder in value.native_libraries)


def _built(builders: Iterable[Callable[[], Path]]) -> list[Path]:
    try:
        return [builder() for builder in builders]
    except UnsupportedError as error:
        raise MissingRequirementError(str(error)) from error


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in build_libraries())
