import os
import sys
from pathlib import Path
from typing import Any

import pytest

from switch_agg.native.build import build
from testbed.experiment.experiment import validate
from testbed.hosts.base import runtime_driver
from testbed.plan.plan import make_plan
from transports.channels.tcp import Tcp
from transports.compression.int8 import EightBitIntegers


def missing(program: str) -> list[str]:
    plan = make_plan(validate({"name": "a", "workers": 2, "workload": {"kind": "command", "argv": [program]}}))
    return runtime_driver(plan).missing()


def test_a_program_that_is_not_there_is_refused_before_anything_is_made() -> None:
    assert missing(sys.executable) == []
    assert missing("no-such-program") == [
        "workload.argv: there is no program 'no-such-program': install it, or give its path"
    ]


@pytest.mark.parametrize(
    ("keys", "files"),
    [
        ({}, ["tcp.c"]),
        ({"channel": "grpc"}, []),
        ({"channel": "grpc", "compression": "int8"}, ["blocks.c"]),
        ({"stack": "gloo"}, []),
        ({"workload": {"kind": "allreduce", "stacks": ["ring/tcp", "ring/grpc"]}}, ["tcp.c"]),
        ({"workload": {"kind": "allreduce", "stacks": ["ring/grpc/int8"]}}, ["blocks.c"]),
        ({"workload": {"kind": "command", "argv": [sys.executable]}}, []),
        ({"workload": {"kind": "command", "argv": [sys.executable], "backend": "testbed"}}, ["tcp.c"]),
    ],
)
def test_what_workers_would_do_in_python_for_want_of_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], files: list[str]
) -> None:
    """They would be several times slower, and the run's numbers those of numpy."""
    for value, name in ((Tcp, "tcp.c"), (EightBitIntegers, "blocks.c")):
        (tmp_path / name).write_text("int nothing;\n")
        monkeypatch.setattr(value, "native_libraries", (lambda name=name: build(tmp_path / name, "library"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = runtime_driver(make_plan(validate({"name": "a", "workers": 2, **keys}))).missing()
    assert len(missing) == len(files)
    for text, name in zip(missing, files, strict=True):
        assert text.startswith(f"channel, compression: no cc or gcc to build {name} with: apt-get install")


def test_programs_inherit_what_the_controller_was_started_with() -> None:
    assert validate({"name": "a"}).runtime.inherited() == os.environ
