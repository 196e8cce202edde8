"""Libraries in C of what Python can do, too, more slowly."""

import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from switch_agg.errors import UnsupportedError as CannotBuildError
from transports.errors import UnsupportedError

_log: Final = logging.getLogger(__name__)

REQUIRED_VARIABLE: Final = "TESTBED_NATIVE_REQUIRED"
"""In the environment: where it is not empty, Python does not take the place of a library that cannot be built. What is
measured there would be Python."""


def load_library(build: Callable[[], Path], consequence: str) -> ctypes.CDLL | None:
    """What `build` has built; None where it cannot be, and the log says why after the consequence. Raises
    UnsupportedError in that case if REQUIRED_VARIABLE is set."""
    try:
        return ctypes.CDLL(str(build()))
    except CannotBuildError as error:
        if os.environ.get(REQUIRED_VARIABLE):
            raise UnsupportedError(str(error)) from error
        _log.warning("%s: %s", consequence, error)
        return None
