"""Whether a machine is quiet, looked at while one core is not."""

import os
import subprocess
import sys

import pytest

from tests.load import idlest_core, is_busy


def test_a_program_that_computes_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            assert is_busy()
        finally:
            spinning.kill()


def test_the_core_that_is_left_is_the_idlest(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    looks = iter([dict.fromkeys(allowed, 100), {**dict.fromkeys(allowed, 130), allowed[-1]: 104}])
    monkeypatch.setattr("tests.load._busy_ticks", lambda: next(looks))
    assert idlest_core() == allowed[-1]
