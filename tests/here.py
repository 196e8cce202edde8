"""The console script in the test's own process, whose imports and whose template for workers are there already: half of
what a short run takes. What is about signals, about what is left, or about the process itself starts one."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

from testbed.cli import main
from testbed.errors import CalibrationError
from testbed.system.interruptions import SIGNALS


@dataclass(frozen=True)
class Done:
    """As `subprocess.run` has it."""

    returncode: int
    stdout: str
    stderr: str


def invoke(*words: object, script: Callable[[], None] = main) -> Done:
    """`testbed WORDS...`, or another script's function with them, in the current directory."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with ExitStack() as stack:
            stack.enter_context(_as_command_line(words))
            stack.enter_context(_into("stdout", output.fileno()))
            stack.enter_context(_into("stderr", errors.fileno()))
            try:
                script()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            else:
                status = 0
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
        return Done(status, *said)


def summary_of(done: "Done | subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What `testbed run --json` has printed of a run that came to its end, whatever its verdict."""
    assert done.returncode in {0, CalibrationError.exit_code}, done.stderr + done.stdout
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (summary["outcome"] in {"valid", "degraded"}), summary["reasons"]
    return summary


@contextmanager
def _into(name: str, descriptor: int) -> Iterator[None]:
    """What goes to that stream, of this process and of those that inherit its descriptor, goes to another one."""
    known, number = getattr(sys, name), {"stdout": 1, "stderr": 2}[name]
    known.flush()
    kept = os.dup(number)
    os.dup2(descriptor, number)
    stream = TextIOWrapper(os.fdopen(os.dup(number), "wb"), encoding="utf-8", write_through=name == "stderr")
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, known)
        stream.close()
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def _as_command_line(words: tuple[object, ...]) -> Iterator[None]:
    """What the script changes of its process is put back: what it is called with, and who handles signals."""
    known = sys.argv
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    sys.argv = ["testbed", *map(str, words)]
    try:
        yield
    finally:
        sys.argv = known
        for number, handler in handlers.items():
            signal.signal(number, handler)
