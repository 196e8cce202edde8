"""Every benchmark of the project, one after the other."""

import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from testbed.benchmarks import aggregation, containers, hosts, links, overheads, training, transports
from testbed.benchmarks.targets import Benchmarks, Journal, render_targets
from testbed.errors import SpecError


def every_part() -> Mapping[str, Benchmarks]:
    """The project's own benchmark set, by title; with containers where there are a Docker daemon and the image."""
    return {
        "links": links.benchmarks(),
        "transports": transports.BENCHMARKS,
        "the aggregating switch": aggregation.BENCHMARKS,
        "training": training.BENCHMARKS,
        "hosts": hosts.BENCHMARKS,
        "around a run": overheads.BENCHMARKS,
        **({} if containers.missing() else {"containers": containers.BENCHMARKS}),
    }


def run_all(parts: Mapping[str, Benchmarks], output: Path, console: Console) -> None:
    """Measure every part. Each row is in `output` as soon as it is measured; a benchmark that fails stops no other.

    Raises SpecError when `output` cannot be written, and in the end NotMeasuredError naming the benchmarks that failed.
    """
    try:
        stream = output.open("w", encoding="utf-8")  # now rather than after minutes of measuring
    except OSError as failure:
        raise SpecError(f"--output {output}: {failure.strerror}") from None
    begun_s = time.monotonic()
    with (
        stream,
        Journal(stream=stream, tell=lambda text: console.print(text, markup=False, highlight=False)) as journal,
    ):
        for number, (title, benchmarks) in enumerate(parts.items(), start=1):
            minutes = (time.monotonic() - begun_s) / 60
            console.print(f"[bold]{title}[/] (part {number} of {len(parts)}, after {minutes:.0f} min)", highlight=False)
            for name, benchmark in benchmarks.items():
                journal.measure(f"{title}, {name}", benchmark, part=title, benchmark=name)
            console.print()
    render_targets(journal.rows, console)
    console.print(f"rows: {output}", highlight=False)
    journal.require_all()
