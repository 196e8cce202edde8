"""What can go wrong in the testbed, by whose fault it is, and the exit code that says so.

TestbedError
+-- SpecError            2    the spec or the command line; names the field and what is allowed
+-- MissingRequirementError  3  something is missing on this machine, or did not take a setting; names the fix
+-- CalibrationError     4    a link does not do what it says
+-- InvalidResultError   4    a result's numbers do not stand; raised by whoever wants one of them in Python
+-- RunFailedError       1    a process of the run died, hung or raised
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transports.errors import OptionError


class TestbedError(Exception):
    """The root of every error this package raises on purpose."""

    exit_code: int = 1


class SpecError(TestbedError):
    """The spec or the command line is wrong; the message names the field and what is allowed."""

    exit_code = 2


class MissingRequirementError(TestbedError):
    """Something is missing on this machine, or it did not take a setting; the message names the fix."""

    exit_code = 3


class CalibrationError(TestbedError):
    """A link does not do what it says; the numbers would describe a network nobody requested."""

    exit_code = 4


class InvalidResultError(TestbedError):
    """The numbers of this result do not stand; the message says why."""

    exit_code = 4


class RunFailedError(TestbedError):
    """A process of the run died, hung or raised; the message carries its traceback."""

    exit_code = 1


class ResultWarning(UserWarning):
    """A result that was made just now stands with reservations, or not at all; or one was left out that cannot be
    read."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP: unwinds all that was made. Not an error: nothing that handles errors may stop it."""


@contextmanager
def as_spec_errors() -> Iterator[None]:
    """What transports and registries refuse by names of their own options stands in the spec, or was said on the
    command line."""
    try:
        yield
    except OptionError as error:
        raise SpecError(str(error)) from None
