"""What the flow simulation is held to: iterations on emulated links, beside those that are simulated.

The list is `simulation.yaml`. Several jobs are one run in emulation: a graph in which each job's ranks are a group and
exchange their own gradients.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbed.benchmarks.targets import Benchmarks, Row, degraded_runs, quietly, target_row
from testbed.benchmarks.training import measured_run
from testbed.errors import RunFailedError
from testbed.experiment.documents import read_document
from testbed.experiment.experiment import Experiment, validate
from testbed.record.summary import Summary
from testbed.theory.simulation.simulate import grown, simulate
from testbed.traces.formats.graph import graph_text
from testbed.traces.graph import Collective, Compute, Graph
from transports.units import format_size

LIST: Final = Path(__file__).with_name("simulation.yaml")
MAX_ERROR: Final = 0.05
FORWARD_S: Final = 0.02
BACKWARD_S: Final = 0.04
GRADIENT_BYTES: Final = 2**20
COLLECTIVES: Final = {
    "ring": "ring",
    "hierarchical": "hierarchical",
    "in_network, at: tree": "{kind: in_network, at: tree}",
}
TARGETS_S: Final = {16: None, 64: None, 256: None, 1024: None, 4096: 5.0, 16_384: 30.0}
"""By the number of workers on a fat tree, with what a command takes to start."""
MAX_BYTES: Final = 2e9
_ITERATIONS: Final[Mapping[str, Any]] = {"warmup": 2, "iterations": 5}
_BASE: Final[Mapping[str, Any]] = {
    "link": {"rate": "40mbit", "delay": "200us"},
    "fusion": "none",
    "dilation": 4,  # hosts, of which the simulation knows nothing, cost a quarter
    "metrics": {"port": None},
    "workload": {
        "kind": "synthetic",
        "layers": [format_size(GRADIENT_BYTES)],
        "forward": f"{FORWARD_S}s",
        "backward": f"{BACKWARD_S}s",
        "compute_only": 2,
        **_ITERATIONS,
    },
}


def cases() -> dict[str, dict[str, Any]]:
    """By name, what each run's spec says beside what they have in common, and `jobs`."""
    document = read_document(LIST)
    assert isinstance(document, dict), "the list is ours"
    return document


def job_of(name: str, case: Mapping[str, Any]) -> Experiment:
    """One job of a case, as it is simulated."""
    own = {key: value for key, value in case.items() if key != "jobs"}
    return validate({"name": f"simulate-{name}".replace("_", "-"), **_BASE, **own})


def emulated(name: str, case: Mapping[str, Any], directory: Path) -> Experiment:
    """The run that stands for all jobs of a case; a graph of several is written into the directory."""
    job, num_jobs = job_of(name, case), case.get("jobs", 1)
    if num_jobs == 1:
        return job
    path = directory / "jobs.json"
    path.write_text(graph_text(graph_of_jobs(num_jobs, job.workers)), encoding="utf-8")
    together = grown(job, num_jobs=num_jobs).dump() | {
        "workers": num_jobs * job.workers,
        "workload": {"kind": "replay", "trace": str(path), **_ITERATIONS},
    }
    del together["fusion"]  # the graph's exchanges are as they are
    return validate(together)


def graph_of_jobs(num_jobs: int, num_workers: int) -> Graph:
    """Of jobs that compute and then sum their gradients, each among as many ranks of its own. They begin iterations
    together: else the one that TCP favours ends its run early, and the other has the links to itself."""
    jobs = {f"job{job}": tuple(range(job * num_workers, (job + 1) * num_workers)) for job in range(num_jobs)}
    ranks = []
    for group, members in jobs.items():
        nodes = (
            Collective("barrier", 0, "float32", "world", name="begin"),
            Compute(FORWARD_S, "forward", (0,)),
            Compute(BACKWARD_S, "backward", (1,)),
            Collective("all_reduce", GRADIENT_BYTES // 4, "float32", group, name="gradients", after=(2,)),
        )
        ranks += [nodes] * len(members)
    return Graph(ranks=tuple(ranks), groups={"world": tuple(range(num_jobs * num_workers)), **jobs})


def _rows(name: str, case: Mapping[str, Any]) -> Iterator[Row]:
    simulated = simulate(job_of(name, case), num_jobs=case.get("jobs", 1))

    def run() -> Summary:
        with tempfile.TemporaryDirectory(prefix="testbed-bench-") as directory:
            return measured_run(emulated(name, case, Path(directory)))

    summary, cores = quietly(run)
    assert summary.iteration_time_s is not None, "measured_run() has looked"
    error = simulated.iteration_time_s / summary.iteration_time_s.mean - 1
    facts = {
        "simulated_s": simulated.iteration_time_s,
        "measured_s": summary.iteration_time_s.mean,
        "error": error,
        **degraded_runs({"the run": (summary.outcome, summary.reasons)}),
    }
    yield target_row(f"{name}: iteration, simulated, error", abs(error), MAX_ERROR, {**cores, **facts})


_WITH_PEAK: Final = """
import atexit, re, runpy, sys
peak = lambda: re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1]
atexit.register(lambda: print(peak(), file=sys.stderr))
runpy.run_module("testbed", run_name="__main__", alter_sys=True)
"""
"""The command, and at its end its peak in KiB: what wait4(2) says is at least what its parent had when it forked."""


class Cost(NamedTuple):
    """Of one command, from its begin to its end."""

    wall_s: float
    peak_bytes: int
    """Of memory that was resident."""


def cost(*words: str) -> Cost:
    """Of `testbed simulate` with those words. Raises RunFailedError where it fails."""
    begun_s = time.monotonic()
    command = [sys.executable, "-c", _WITH_PEAK, "simulate", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunFailedError(f"testbed simulate {' '.join(words)}: {done.stderr.strip()}")
    return Cost(time.monotonic() - begun_s, 1024 * int(done.stderr.split()[-1]))


def _cost_rows() -> Iterator[Row]:
    """Seconds over the number of workers, and the most memory."""
    for name, collective in COLLECTIVES.items():
        peak_bytes = 0
        for num_workers, target_s in TARGETS_S.items():
            words = ["quickstart", "--workers", str(num_workers)]
            found = cost(*words, "--set", "topology=fat_tree", "--set", f"collective={collective}")
            peak_bytes = max(peak_bytes, found.peak_bytes)
            facts = {"collective": name, "num_workers": num_workers, **found._asdict()}
            yield target_row(f"cost: {name}, {num_workers:,} workers, seconds", found.wall_s, target_s, facts)
        yield target_row(f"cost: {name}, memory at most, bytes", float(peak_bytes), MAX_BYTES, {})


def benchmarks() -> Benchmarks:
    """By the name of each case; and what simulations of many workers cost."""
    return {**{name: partial(_rows, name, case) for name, case in cases().items()}, "cost": _cost_rows}
