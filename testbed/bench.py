"""Micro-benchmarks: ratios measured side by side in one run, never absolute times judged alone."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from testbed import link_benchmarks
from testbed.aggregation.facts import violations
from testbed.calibrate import delays_of, rate_of
from testbed.control.coordinator import Listener
from testbed.deploy import deploy
from testbed.doctor import plan_here, require
from testbed.errors import EnvironmentLacksError, RunFailedError, SpecError, TestbedError
from testbed.measure.machine import MachineSample
from testbed.measure.streams import goodput_fraction
from testbed.processes import RUN_ID_VARIABLE
from testbed.spec.experiment import validate
from testbed.state import new_run_id
from testbed.targets import MAX_STEAL_SHARE, Benchmarks, render_targets, row_text, target_row, target_rows
from testbed.workbench import owned_run, workbench
from transports.errors import TransportError
from transports.samples import Row, Sample, summarise
from transports.units import format_rate, format_time


def parse_link(text: str) -> dict[str, str]:
    """`RATE[,DELAY[,LOSS]]` as the `link` section of a spec. Raises SpecError."""
    parts = [part.strip() for part in text.split(",")]
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise SpecError(f"--link {text}: write RATE[,DELAY[,LOSS]], such as 1gbit,50us")
    return dict(zip(("rate", "delay", "loss"), parts, strict=False))


class _Results(Listener):
    """Collects what each worker measured."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def on_result(self, rank: int, json: str) -> None:  # noqa: ARG002 (each sample says its own)
        self.samples += parse_samples(json)


def parse_samples(text: str) -> list[Sample]:
    """What a worker of the workload `allreduce` reports."""
    return [Sample(**each) for each in json.loads(text)]


def allreduce_rows(
    *,
    num_workers: int,
    link: dict[str, str],
    sizes: Sequence[str],
    stacks: Sequence[str],
    repeat: int,
    congestion: str,
    **keys: Any,
) -> list[Row]:
    """Time all-reduce of each size on each stack over one star; `keys` are further ones of the spec. A sample's time
    is that of its slowest worker."""
    experiment = validate(
        {
            "name": "bench-allreduce",
            "workers": num_workers,
            "link": link,
            "channel": {"kind": "tcp", "congestion": congestion},
            "workload": {"kind": "allreduce", "sizes": list(sizes), "stacks": list(stacks), "repeat": repeat},
            "metrics": {"port": None},
            "timeout": "120s",
            **keys,
        }
    )
    plan = plan_here(experiment)
    require(plan)
    results = _Results()
    with (
        tempfile.TemporaryDirectory(prefix="testbed-bench-") as logs,
        workbench(plan, run_id=new_run_id(), log_directory=Path(logs)) as bench,
    ):
        bench.work(results, timeout_s=24 * 3600.0)
        wrong = violations(bench.deployment.aggregator_reports)
    if wrong:
        raise RunFailedError("\n".join(wrong))
    if not results.samples:
        raise RunFailedError("the workers measured nothing")
    link_spec = experiment.link
    rows = summarise(
        results.samples,
        operation="all_reduce",
        dtype="float32",
        num_workers=num_workers,
        rate_bps=link_spec.rate_bps,
        mtu=experiment.mtu,
    )
    return [{**row, "rate_bps": link_spec.rate_bps, "delay_s": link_spec.delay_s} for row in rows]


def link_rows(links: Sequence[dict[str, str]], *, repeat: int, runtime: str = "namespace") -> list[Row]:
    """Measure one direction of an emulated link of each kind, repeatedly, against what was asked."""
    return [row for link in links for row in _link_row(link, repeat, runtime)]


def _link_row(link: dict[str, str], repeat: int, runtime: str) -> list[Row]:
    with link_benchmarks.deployed(link=link, runtime=runtime) as deployment:
        plan = deployment.plan
        measured = [rate_of(deployment, direction) for _ in range(repeat) for direction in plan.directions[:2]]
        delays_s = delays_of(deployment, plan.directions[:2])
    asked = plan.experiment.link
    goodput_bps = statistics.median(m.goodput_bps for m in measured)
    return [
        {
            "rate_bps": asked.rate_bps,
            "delay_s": asked.delay_s,
            "loss": asked.mean_loss,
            "backend": plan.delay_backend or "none",
            "num_samples": len(measured),
            "measured_goodput_bps": goodput_bps,
            "expected_goodput_bps": asked.rate_bps * goodput_fraction(),
            "goodput_ratio": goodput_bps / (asked.rate_bps * goodput_fraction()),
            "measured_rate_bps": goodput_bps / goodput_fraction(),
            "measured_delay_s": statistics.median(delays_s),
        }
    ]


def render_links(rows: Sequence[Row], console: Console) -> None:
    """Asked against measured."""
    table = Table(box=None, pad_edge=False)
    for column in ("rate", "measured", "goodput/expected", "delay", "measured", "backend"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            format_rate(row["rate_bps"]),
            f"{row['measured_rate_bps'] / 1e6:.3f} Mbit/s",
            f"{row['goodput_ratio']:.4f}",
            format_time(row["delay_s"]),
            f"{row['measured_delay_s'] * 1e6:.0f} us",
            row["backend"],
        )
    console.print(table)


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
        "workload.iterations=3",
        "link.rate=1gbit",
        f"runtime.kind={runtime}",
    )
    phases = summary["overhead_s"]
    return {
        "overhead_s": sum(phases.values()),
        "phases_s": phases,
        "unshared_memory_bytes": max(summary["unshared_memory_bytes"], default=None),
        "outcome": summary["outcome"],
    }


def quickstart_summary(*overrides: str) -> Row:
    """What `testbed run --json` prints of the quickstart, in a process of its own. Raises RunFailedError."""
    quickstart = Path(__file__).resolve().parent.parent / "experiments" / "quickstart.yaml"
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as output:
        argv = [sys.executable, "-m", "testbed", "run", str(quickstart), "--json", "--output", output]
        for override in ("metrics.port=0", *overrides):
            argv += ["--set", override]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ})
    if not done.stdout.strip():
        raise RunFailedError(f"the quickstart with {', '.join(overrides)} failed:\n{done.stderr}")
    summary: Row = json.loads(done.stdout)
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

    Ours includes reading every setting back. Raises EnvironmentLacksError if there is no brctl for Mininet's bridge.
    """
    if shutil.which("brctl") is None:
        raise EnvironmentLacksError("plain Mininet's bridge needs brctl: apt-get install bridge-utils")
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


def every_part() -> Mapping[str, Benchmarks]:
    """The project's own benchmark set, by title; with containers where there are a Docker daemon and the image."""
    from testbed import (  # they measure with this one
        aggregation_benchmarks,
        container_benchmarks,
        training_benchmarks,
        transport_benchmarks,
    )

    return {
        "links": link_benchmarks.benchmarks(),
        "transports": transport_benchmarks.BENCHMARKS,
        "the switch that adds": aggregation_benchmarks.BENCHMARKS,
        "training": training_benchmarks.BENCHMARKS,
        "around a run": {"overhead": _overhead_targets, "deploy": _deploy_targets},
        **({} if container_benchmarks.lacks() else {"containers": container_benchmarks.BENCHMARKS}),
    }


def run_all(parts: Mapping[str, Benchmarks], output: Path, console: Console) -> None:
    """Measure every part. What is measured is in `output` after each benchmark, and one that fails stops no other.

    Raises SpecError when `output` cannot be written, and in the end RunFailedError naming the benchmarks that failed.
    """
    try:
        output.open("a", encoding="utf-8").close()  # now rather than after minutes of measuring
    except OSError as refusal:
        raise SpecError(f"--output {output}: {refusal.strerror}") from None
    rows: list[Row] = []
    failures: list[str] = []
    begun_s = time.monotonic()

    def tell(row: Row) -> None:
        console.print(row_text(row), highlight=False)

    for number, (title, benchmarks) in enumerate(parts.items(), start=1):
        minutes = (time.monotonic() - begun_s) / 60
        console.print(f"[bold]{title}[/] (part {number} of {len(parts)}, after {minutes:.0f} min)", highlight=False)
        for name in benchmarks:
            try:
                measured = target_rows(benchmarks, [name], on_row=tell)
            except (TestbedError, TransportError) as error:
                failures.append(f"{title}, {name}: {error}")
                console.print(failures[-1], style="red", markup=False, highlight=False)
                continue
            rows += [{"part": title, "benchmark": name, **row} for row in measured]
            written = {"schema_version": 1, "rows": rows, "failures": failures}
            output.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        console.print()
    render_targets(rows, console)
    console.print(f"rows: {output}", highlight=False)
    if failures:
        raise RunFailedError("not measured:\n" + "\n".join(failures))


def _overhead_targets() -> Iterator[Row]:
    """A short quickstart: seconds outside its iterations, and memory that workers do not share."""
    for row, target_s in zip(overhead_rows(workers=(4, 16), repeat=3), (10.0, 20.0), strict=True):
        count, memory_bytes = row["num_workers"], row["unshared_memory_bytes"]
        yield target_row(f"seconds around the iterations, {count} workers", row["overhead_s"], target_s, row)
        if memory_bytes is not None:
            yield target_row(f"unshared MB per worker, {count} workers", memory_bytes / 1e6, 60.0, row)


def _deploy_targets() -> Iterator[Row]:
    row = deploy_row(num_workers=64, repeat=5)
    yield target_row("deploy and tear down a star of 64 over plain Mininet", row["ratio"], 0.5, row)
