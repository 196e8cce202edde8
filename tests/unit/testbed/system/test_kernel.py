"""The limit on open files, in processes of their own."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, resource, sys
from testbed.errors import MissingRequirementError
from testbed.system.kernel import require_descriptors
soft, hard, needed, user = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
if user:
    os.setuid(user)
try:
    require_descriptors(needed)
except MissingRequirementError as error:
    print(error)
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def reported(soft: int, hard: int, needed: int, user: int | None = None) -> str:
    command = [sys.executable, "-c", CODE, *map(str, (soft, hard, needed, user or 0))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_limit_that_is_high_enough_stays() -> None:
    assert reported(256, 256, 128) == "256\n"


def test_one_that_is_too_low_is_raised_as_far_as_the_hard_one() -> None:
    assert reported(64, 1024, 1024) == "1024\n"


@pytest.mark.privileged
def test_who_may_not_raise_it_is_informed_who_may() -> None:
    assert os.geteuid() == 0
    assert "may open 64 files at once, and 1024 are needed: ulimit -n 1024" in reported(64, 64, 1024, user=65534)
