"""What surrounds a run: the seconds outside its iterations, its memory, making and removing its network."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testbed.benchmarks.targets import MAX_STEAL_SHARE, Benchmarks, Row, degraded_runs, require_standing, target_row
from testbed.deployment.deployment import deploy
from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.experiment import validate
from testbed.hosts.clean import owned_run
from testbed.machine.doctor import plan_here, require
from testbed.measure.machine import MachineSample
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import new_run_id

_AMPLE: Final = (
    "link.rate=100mbit",
    "workload.iterations=3",
    "workload.compute_only=1",
    "workload.pace.forward=500ms",
    "workload.pace.backward=1s",
)
"""Time enough for two cores to compute what sixteen workers do: what surrounds iterations is that of a run whose
numbers stand."""


def overhead_rows(*, workers: Sequence[int], repeat: int, runtime: str = "namespace") -> list[Row]:
    """Wall seconds around the iterations of a short quickstart: the whole command less its iterations.

    Each is a process of its own, as a user starts it; samples with CPU steal are repeated.
    """
    rows: list[Row] = []
    for num_workers in workers:
        samples: list[Row] = []
        for _ in range(repeat * 4):
            before = MachineSample.take()
            sample = _overhead_sample(num_workers, runtime)
            if MachineSample.take().steal_share_since(before) <= MAX_STEAL_SHARE:
                samples.append(sample)
            if len(samples) == repeat:
                break
        if not samples:
            raise RunFailedError("every sample had more than 2 % of CPU steal: repeat on a quieter host")
        middle = sorted(samples, key=lambda each: each["overhead_s"])[len(samples) // 2]
        rows.append({"num_workers": num_workers, "num_samples": len(samples), **middle})
    return rows


def _overhead_sample(num_workers: int, runtime: str) -> Row:
    summary = quickstart_summary(
        f"workers={num_workers}",
        *_AMPLE,
        f"runtime.kind={runtime}",
    )
    phases = summary["overhead_s"]
    return {
        "overhead_s": sum(phases.values()),
        "phases_s": phases,
        "uss_bytes": max(summary["uss_bytes"], default=None),
        "outcome": summary["outcome"],
        **degraded_runs({"the run": (summary["outcome"], summary["reasons"])}),
    }


def quickstart_summary(*overrides: str) -> Row:
    """What `testbed run --json` prints of the quickstart, in a process of its own. Raises RunFailedError, also where
    its numbers do not stand."""
    quickstart = Path(__file__).resolve().parents[2] / "experiments" / "quickstart.yaml"
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as output:
        argv = [sys.executable, "-m", "testbed", "run", str(quickstart), "--json", "--output", output]
        for override in ("metrics.port=0", *overrides):
            argv += ["--set", override]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ})
    if not done.stdout.strip():
        raise RunFailedError(f"the quickstart with {', '.join(overrides)} failed:\n{done.stderr}")
    summary: Row = json.loads(done.stdout)
    require_standing(f"the quickstart with {', '.join(overrides)}", summary["outcome"], summary["reasons"])
    return summary


_PLAIN_MININET: Final = """
import sys, time
from functools import partial
from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo

setLogLevel("critical")
Mininet.inited = True  # spares it what it would set for the whole machine
begun_s = time.monotonic()
network = Mininet(
    topo=SingleSwitchTopo(int(sys.argv[1])),
    link=partial(TCLink, bw=float(sys.argv[2])),
    switch=partial(LinuxBridge, inNamespace=True),
    controller=None,
)
network.start()
network.stop()
sys.stdout.write(str(time.monotonic() - begun_s))
"""
"""Prints the seconds. In a process of its own: it prints errors and changes what the process shares."""


def deploy_row(*, num_workers: int, repeat: int) -> Row:
    """Making and removing a star, without calibration, interleaved with plain Mininet's start and stop of the same.

    Ours includes reading every setting back. Raises MissingRequirementError if there is no brctl for Mininet's bridge.
    """
    if shutil.which("brctl") is None:
        raise MissingRequirementError("plain Mininet's bridge needs brctl: apt-get install bridge-utils")
    link = {"rate": "100mbit"}
    plan = plan_here(
        validate({"name": "bench-deploy", "workers": num_workers, "link": link, "metrics": {"port": None}})
    )
    require(plan)
    ours_s, theirs_s = [], []
    for _ in range(repeat):
        with owned_run(new_run_id()) as state:
            done = subprocess.run(
                [sys.executable, "-c", _PLAIN_MININET, str(num_workers), str(plan.experiment.link.rate_bps / 1e6)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, RUN_ID_VARIABLE: state.run_id},
            )
        if done.returncode != 0:
            raise RunFailedError(f"plain Mininet failed:\n{done.stderr}")
        theirs_s.append(float(done.stdout.split()[-1]))
        with tempfile.TemporaryDirectory(prefix="testbed-bench-") as logs:
            begun_s = time.monotonic()
            with owned_run(new_run_id()) as state, deploy(plan, state, log_directory=Path(logs)):
                pass
            ours_s.append(time.monotonic() - begun_s)
    medians_s = statistics.median(ours_s), statistics.median(theirs_s)
    return {
        "num_workers": num_workers,
        "num_samples": repeat,
        "ours_s": medians_s[0],
        "mininet_s": medians_s[1],
        "ratio": medians_s[0] / medians_s[1],
    }


def _overhead_targets() -> Iterator[Row]:
    """A short quickstart: seconds outside its iterations, and memory that workers do not share."""
    for row, target_s in zip(overhead_rows(workers=(4, 16), repeat=3), (10.0, 20.0), strict=True):
        count, memory_bytes = row["num_workers"], row["uss_bytes"]
        yield target_row(f"seconds around the iterations, {count} workers", row["overhead_s"], target_s, row)
        if memory_bytes is not None:
            yield target_row(f"unshared MB per worker, {count} workers", memory_bytes / 1e6, 60.0, row)


def _deploy_targets() -> Iterator[Row]:
    row = deploy_row(num_workers=64, repeat=5)
    yield target_row("deploy and tear down a star of 64 over plain Mininet", row["ratio"], 0.5, row)


BENCHMARKS: Final[Benchmarks] = {"overhead": _overhead_targets, "deploy": _deploy_targets}
