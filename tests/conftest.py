"""For every test: properties are tried on the same examples every time, so that a change is not blamed for a failure
that was there before; `make test-properties` tries them on new ones. No example has to end within a time, because other
work may hold the cores. A file in which `-m` selects nothing is not imported. What programs leave in the folder for
temporary files goes with the tests: torchrun keeps its logs there, a rank that Open MPI aborts the files of its job."""

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
from hypothesis import settings

from tests.selection import may_select

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True of a file that need not be imported; None leaves it to others."""
    expression: str = config.getoption("markexpr")
    left_out = (
        expression and collection_path.match("test_*.py") and not may_select(expression, collection_path.read_text())
    )
    return True if left_out else None


def pytest_configure() -> None:
    """One folder for temporary files, of all processes of these tests; what pytest keeps for a look stays elsewhere."""
    if "TESTS_TMPDIR" in os.environ:  # a process beside, or tests that tests run
        return
    usual = tempfile.gettempdir()
    own = tempfile.mkdtemp(prefix="tests-")
    Path(own).chmod(0o1777)
    os.environ |= {"TESTS_TMPDIR": own, "TMPDIR": own}
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    tempfile.tempdir = None
    # After multiprocessing's own folder in it, which has priority -100 and is missed loudly.
    Finalize(None, shutil.rmtree, args=(own,), kwargs={"ignore_errors": True}, exitpriority=-200)
