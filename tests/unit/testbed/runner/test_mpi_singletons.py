import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

from testbed.runner.mpi_singletons import SingletonWatch, is_singleton

WITH_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(flush=True); input()"
WITHOUT = "print(flush=True); input()"


class Running:
    """As much of a worker's process as is looked at."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self.poll = popen.poll


@contextmanager
def running(
    code: str, *, count: int = 1, shell: bool = False, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[Any]]:
    python = [sys.executable, "-c", code]
    argv = ["sh", "-c", '"$@"; true', "sh", *python] if shell else python
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, start_new_session=True, env={"PATH": "/usr/bin:/bin", **variables}
        )
        for _ in range(count)
    ]
    try:
        for popen in started:
            assert popen.stdout is not None
            popen.stdout.readline()
        yield [Running(popen) for popen in started]
    finally:
        for popen in started:
            popen.communicate(b"\n", timeout=30)


@pytest.mark.parametrize(
    ("code", "shell", "variables", "expected"),
    [
        (WITH_MPI, False, {}, True),
        (WITH_MPI, True, {}, True),
        (WITH_MPI, False, {"PMIX_RANK": "0"}, False),
        (WITH_MPI, False, {"OMPI_MCA_pml": "ob1"}, True),  # a setting, not a place in a job
        (WITHOUT, False, {}, False),
    ],
)
def test_the_library_without_a_launcher(code: str, shell: bool, variables: dict[str, str], expected: bool) -> None:
    with running(code, shell=shell, variables=variables) as (process,):
        assert is_singleton(process.pid) is expected


def test_it_is_said_once_and_of_several_only() -> None:
    with running(WITH_MPI, count=2) as processes:
        assert not SingletonWatch(processes[:1]).found(), "one alone is no mistake"
        watch = SingletonWatch(processes)
        assert watch.found()
        assert not watch.found()


def test_a_program_that_goes_on_is_looked_at_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looked = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr("testbed.runner.mpi_singletons.is_singleton", lambda pid: bool(looked.append((now_s[0], pid))))
    with running(WITHOUT, count=2) as processes:
        watch = SingletonWatch(processes)
        for tick in range(20 * 600):
            now_s[0] = tick / 20
            assert not watch.found()
    assert 40 < len(looked) < 55


def test_a_process_that_has_ended_is_none() -> None:
    with running(WITHOUT) as (process,):
        pass
    assert not is_singleton(process.pid)
