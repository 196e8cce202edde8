"""`switch-agg serve --dataplane ebpf` however it ends: nothing of it stays on the switch."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rack import AGGREGATOR, PORT, Rack, rack

pytestmark = pytest.mark.privileged
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED_WHERE_IT_ATTACHES = """
import os, sys
from switch_agg import __main__
from switch_agg.native.libbpf import BpfObject

attach = BpfObject.attach

def attach_and_signal(*given):
    attach(*given)
    os.kill(os.getpid(), number)

number = int(sys.argv.pop(1))
BpfObject.attach = attach_and_signal
__main__.main()
"""
"""`switch-agg`, to which the signal of its first argument comes as early as there is a program on the switch."""


def serve(
    r: Rack, control: Path, *, listen: str = AGGREGATOR, program: tuple[str, ...] = ("-m", "switch_agg")
) -> list[str]:
    """Its command line, in the aggregator's namespace."""
    inside = ["nsenter", "-t", str(r.aggregators[0]), "-n", sys.executable, *program]
    words = ["serve", "--dataplane", "ebpf", "--listen", listen, "--control", str(control)]
    return [*inside, *words, "--switch-pid", str(r.switch), "--interface", "agg0"]


def on_switch(r: Rack) -> tuple[str, str]:
    """Queueing disciplines and filters of the port that leads to the aggregator."""
    found = []
    for words in (("qdisc", "show", "dev", "agg0"), ("filter", "show", "dev", "agg0", "egress")):
        argv = ["nsenter", "-t", str(r.switch), "-n", "tc", *words]
        # Where there is no hook, tc says so and fails.
        found.append(subprocess.run(argv, check=False, capture_output=True, text=True).stdout)
    return found[0], found[1]


@contextmanager
def serving(argv: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that has said that it is ready."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"ready {AGGREGATOR}:{PORT}\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_it_serves_removes_the_program_and_the_control_socket(
    number: signal.Signals, tmp_path: Path
) -> None:
    """SIGHUP, of a terminal that goes away, left both."""
    control = tmp_path / "agg.sock"
    with rack(1) as r:
        before = on_switch(r)
        with serving(serve(r, control)) as process:
            assert "aggregate" in on_switch(r)[1]
            assert control.exists()
            process.send_signal(number)
            status = process.wait(10)
        assert on_switch(r) == before
        assert not control.exists()
        assert status == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_it_is_being_set_up_removes_the_program(number: signal.Signals, tmp_path: Path) -> None:
    """Handlers were there only once it was ready: SIGTERM and SIGHUP left the program on the switch."""
    control = tmp_path / "agg.sock"
    with rack(1) as r:
        before = on_switch(r)
        argv = serve(r, control, program=("-c", SIGNALLED_WHERE_IT_ATTACHES, str(int(number))))
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        assert on_switch(r) == before
        assert not control.exists()
        assert (done.returncode, done.stdout) == (130, ""), done.stderr
        assert done.stderr == f"switch-agg: {number.name}: interrupted; everything that was made has been removed\n"


def test_an_address_that_cannot_be_had_leaves_no_program_and_the_corrected_command_serves(tmp_path: Path) -> None:
    """The program stayed, took contributions off the link, and was in the way of the next aggregator."""
    control = tmp_path / "agg.sock"
    with rack(1) as r:
        before = on_switch(r)
        argv = serve(r, control, listen="10.9.250.2")
        refused = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        assert on_switch(r) == before
        assert (refused.returncode, "no interface here has it" in refused.stderr) == (3, True), refused.stderr
        with serving(serve(r, control)) as process:
            process.terminate()
            assert process.wait(10) == 0
