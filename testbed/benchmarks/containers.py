"""What containers are held to beside namespaces, by whole runs of the quickstart as a user starts them.

Link accuracy at containers is `testbed bench links --runtime docker`.
"""

from collections.abc import Iterator
from statistics import median
from typing import Final

from testbed.benchmarks.overheads import overhead_rows, quickstart_summary
from testbed.benchmarks.targets import Benchmarks, Row, degraded_runs, target_row
from testbed.experiment.experiment import validate
from testbed.hosts.base import runtime_driver
from testbed.machine.doctor import plan_here

NUM_PAIRS: Final = 5
_RUNTIMES: Final = ("namespace", "docker")
_OVERHEADS_S: Final = {4: 20.0, 16: 60.0}


def missing() -> list[str]:
    """What this machine has not that containers need: a daemon, the image."""
    plan = plan_here(validate({"name": "bench-containers", "runtime": "docker"}))
    return runtime_driver(plan).missing()


def same_rows() -> Iterator[Row]:
    """The quickstart in namespaces and in containers, in turns: its parameters, and the medians of its iterations.

    The median over the runs of each runtime is compared; all of them are in the row.
    """
    pairs = [[quickstart_summary(f"runtime.kind={kind}") for kind in _RUNTIMES] for _ in range(NUM_PAIRS)]
    parameters = {each["parameters_sha256"] for pair in pairs for each in pair}
    details = {
        "outcomes": [[each["outcome"] for each in pair] for pair in pairs],
        **degraded_runs(
            {
                f"{kind}, {number} of {NUM_PAIRS}": (each["outcome"], each["reasons"])
                for number, pair in enumerate(pairs, start=1)
                for kind, each in zip(_RUNTIMES, pair, strict=True)
            }
        ),
    }
    yield target_row("quickstart in both runtimes: different parameters", len(parameters) - 1, 0, details)
    medians_s = [[each["iteration_time_s"]["median"] for each in pair] for pair in pairs]
    plain_s, contained_s = (median(of_kind) for of_kind in zip(*medians_s, strict=True))
    away = abs(contained_s / plain_s - 1)
    what = "quickstart in containers: median iteration against namespaces, away"
    yield target_row(what, away, 0.05, details | {"medians_s": medians_s})


def start_rows() -> Iterator[Row]:
    """Wall seconds around the iterations: every container imports torch by itself."""
    for num_workers, target_s in _OVERHEADS_S.items():
        (row,) = overhead_rows(workers=(num_workers,), repeat=1, runtime="docker")
        what = f"seconds around the iterations in containers, {num_workers} workers"
        yield target_row(what, row["overhead_s"], target_s, row)


BENCHMARKS: Final[Benchmarks] = {
    "same": same_rows,
    "start": start_rows,
}
