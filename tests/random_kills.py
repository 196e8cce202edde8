"""One run of a tiny experiment in which one of its processes is killed at a moment that a seed draws."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from testbed.hosts.clean import leftovers
from testbed.machine.doctor import missing_for_backend
from testbed.system.kernel import network_namespace
from testbed.system.processes import ProcessIdentity, processes_in_network, processes_of_run
from testbed.system.run_state import RUN_ROOT, RunState, run_ids

ENDS_S = 90.0
"""A run whose process was killed has ended by then; the spec's own timeout is a fraction of it."""
SPEC = """
name: random-kill
workers: 2
topology: dumbbell
workload: {kind: training, batch_size: 8, iterations: 4, compute_only: 1, warmup: 2}
metrics: {port: null}
timeout: 10s
"""


class Victim:
    """A running `testbed run` and what it has made until now."""

    def __init__(self, directory: Path) -> None:
        spec = directory / "spec.yaml"
        # A delay that a daemon makes, where the machine has one: it is a process that may be killed too.
        delay = "" if missing_for_backend("nfqueue") else "link: {rate: 1gbit, delay: 1ms, backend: nfqueue}\n"
        spec.write_text(SPEC + delay)
        known = set(run_ids())
        self.begun_s = time.monotonic()
        self.coordinator = subprocess.Popen(
            [sys.executable, "-m", "testbed", "run", str(spec), "--output", str(directory / "records")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.run_id = self._find(known)
        self.namespaces: set[int] = set()

    def _read(self) -> None:
        assert self.coordinator.stdout is not None
        self.output = self.coordinator.stdout.read()

    def _find(self, known: set[str]) -> str:
        while self.coordinator.poll() is None:
            for run_id in set(run_ids()) - known:
                with suppress(FileNotFoundError):  # others may run, and end, at the same time
                    if RunState.load(run_id).owned().coordinator.pid == self.coordinator.pid:
                        return run_id
            time.sleep(0.002)
        self._reader.join()
        raise AssertionError(f"the run did not begin: {self.output}")

    def watch_until(self, moment_s: float) -> None:
        """Remember every namespace of the run until that moment (time.monotonic())."""
        while True:
            home = network_namespace(os.getpid())
            inodes = {network_namespace(process.pid) for process in processes_of_run(self.run_id)}
            self.namespaces |= {inode for inode in inodes if inode not in {None, home}}
            if time.monotonic() >= moment_s:
                return
            time.sleep(min(0.05, max(0.0, moment_s - time.monotonic())))

    def ended(self, timeout_s: float) -> int:
        status = self.coordinator.wait(timeout_s)
        self._reader.join()
        return status


def whole_run_s(directory: Path) -> float:
    """How long the run takes from the first moment that it owns anything, when nobody is killed."""
    victim = Victim(directory)
    begun_s = time.monotonic()
    assert victim.ended(ENDS_S) in {0, 4}, victim.output
    return time.monotonic() - begun_s


def kill_one(directory: Path, seed: int, duration_s: float) -> str:
    """Kill, clean, and assert that nothing is left. Returns what was killed and when."""
    draw = random.Random(seed)
    victim = Victim(directory)
    after_s = draw.uniform(0, duration_s)
    victim.watch_until(time.monotonic() + after_s)
    chosen = draw.choice([ProcessIdentity.of(victim.coordinator.pid), *processes_of_run(victim.run_id)])
    what = chosen.describe() if chosen is not None else "a run that had ended"
    if chosen is not None:
        with suppress(ProcessLookupError):
            os.kill(chosen.pid, signal.SIGKILL)
    try:
        status = victim.ended(ENDS_S)
    except subprocess.TimeoutExpired:
        victim.coordinator.kill()
        raise AssertionError(f"seed {seed}: the run hangs after {what} was killed at {after_s:.2f} s") from None
    facts = f"seed {seed}: {what} killed at {after_s:.2f} s, status {status}\n{victim.output[-2000:]}"
    cleaned = subprocess.run([sys.executable, "-m", "testbed", "clean"], capture_output=True, text=True, check=False)
    assert cleaned.returncode == 0, f"{facts}\n{cleaned.stdout}{cleaned.stderr}"
    assert leftovers(victim.run_id) == [], facts
    assert processes_of_run(victim.run_id) == [], facts
    assert [process.describe() for process in processes_in_network(victim.namespaces)] == [], facts
    assert list(RUN_ROOT.glob(f"*{victim.run_id}*")) == [], facts
    assert list(Path("/sys/fs/cgroup").glob(f"**/testbed-{victim.run_id}*")) == [], facts
    return facts.partition("\n")[0]
