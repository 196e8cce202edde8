"""A short run that a fault is planted in, and what it says in the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.record.status import read_status
from testbed.system.run_state import RunState, run_ids

STARTS_S = 90.0
ENDS_S = 60.0
SPEC = """
name: sabotaged
workers: 2
link: {rate: 100mbit}
workload: {kind: synthetic, layers: [1MiB], forward: 20ms, backward: 40ms, compute_only: 4, warmup: 2, iterations: 25}
metrics: {port: null}
timeout: 5s
"""
"""Computing takes no core from anybody, so that nothing but the fault holds an iteration (0.15 s) up."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a run left."""

    status: int
    errors: str
    """Standard error."""
    summary: dict[str, Any]
    """Empty where there is no record."""

    @property
    def outcome(self) -> str:
        return str(self.summary.get("outcome", "refused"))

    @property
    def text(self) -> str:
        """All reasons and notes, and what was said."""
        return "\n".join([*self.summary.get("reasons", []), *self.summary.get("notes", []), self.errors])


class Victim:
    """`testbed run`, under way."""

    def __init__(self, directory: Path, overrides: Sequence[str] = (), *, wrapper: Sequence[str] = ()) -> None:
        """`wrapper`: what starts it, such as `prlimit`, with its options."""
        spec = directory / "spec.yaml"
        spec.write_text(SPEC)
        self.records = directory / "records"
        known = set(run_ids())
        argv = [sys.executable, "-m", "testbed", "run", str(spec), "--output", str(self.records)]
        for override in overrides:
            argv += ["--set", override]
        self.process = subprocess.Popen(
            [*wrapper, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.run_id = self._find(known)

    def _find(self, known: set[str]) -> str | None:
        deadline_s = time.monotonic() + STARTS_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            for run_id in set(run_ids()) - known:
                with suppress(FileNotFoundError):  # others may run, and end, at the same time
                    if RunState.load(run_id).owned().coordinator.pid == self.process.pid:
                        return run_id
            time.sleep(0.02)
        return None

    def wait_for(self, *phases: str) -> None:
        """Until the run is in one of them; returns at once where it has ended."""
        deadline_s = time.monotonic() + STARTS_S
        while self.run_id is not None and self.process.poll() is None and time.monotonic() < deadline_s:
            status = read_status(self.run_id)
            if status is not None and status.phase in phases:
                return
            time.sleep(0.02)
        assert self.process.poll() is not None, f"not within {STARTS_S} s: {phases}"

    def pid_of(self, name: str) -> int:
        """Of the process of the run whose name begins so."""
        assert self.run_id is not None, self.process.communicate()
        owned = RunState.load(self.run_id).owned()
        return next(process.pid for process in owned.processes if process.name.startswith(name))

    def within(self, node: str, *lines: str) -> None:
        """Commands in the node's network namespace."""
        enter = ["nsenter", f"--net=/proc/{self.pid_of(f'holder of {node}')}/ns/net", "--"]
        for line in lines:
            done = subprocess.run([*enter, *line.split()], capture_output=True, text=True, timeout=20, check=False)
            assert done.returncode == 0, f"{line}: {done.stderr}"

    def stop_for(self, name: str, time_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        descriptor = os.pidfd_open(self.process.pid if name == "testbed" else self.pid_of(name))
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        time.sleep(time_s)
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        os.close(descriptor)

    def send(self, name: str, number: signal.Signals) -> None:
        descriptor = os.pidfd_open(self.process.pid if name == "testbed" else self.pid_of(name))
        signal.pidfd_send_signal(descriptor, number)
        os.close(descriptor)

    def ended(self) -> Ended:
        """Wait for the end; a run that does not come to one has failed the test."""
        try:
            _, errors = self.process.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            _, errors = self.process.communicate(timeout=ENDS_S)
            raise AssertionError(f"the run hangs: {errors}") from None
        summaries = list(self.records.glob("*/summary.json"))
        summary = json.loads(summaries[0].read_text()) if summaries else {}
        return Ended(status=self.process.returncode, errors=errors, summary=summary)
