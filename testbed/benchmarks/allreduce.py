"""All-reduce of several sizes on several stacks, interleaved on the same links in one run."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import Progress

from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.allreduce import AllReduce
from testbed.machine.doctor import plan_here, require
from testbed.runner.coordinator import Listener
from testbed.runner.session import session
from testbed.system.run_state import new_run_id
from testbed.verdict.aggregation import violations
from transports.bench.rows import Row, Sample, summarise
from transports.units import format_size


class _Results(Listener):
    """Collects what each worker measured, and shows on a terminal how far they are."""

    def __init__(self, progress: Progress, num_samples: int) -> None:
        self.samples: list[Sample] = []
        self._progress = progress
        self._task = progress.add_task("links", total=num_samples)

    def on_result(self, rank: int, json: str) -> None:  # noqa: ARG002 (each sample says its own)
        sample = parse_sample(json)
        self.samples.append(sample)
        done = f"{format_size(sample.size_bytes)} {sample.stack} {sample.duration_s * 1e3:.3g} ms"
        self._progress.update(self._task, advance=1, description=done)


def parse_sample(text: str) -> Sample:
    """What a worker of the workload `allreduce` reports."""
    return Sample(**json.loads(text))


def allreduce_rows(
    *,
    num_workers: int,
    link: dict[str, str],
    sizes: Sequence[str],
    stacks: Sequence[str],
    repeat: int,
    congestion: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    **keys: Any,
) -> list[Row]:
    """Time all-reduce of each size on each stack over one star; `options` are further ones of the workload, `keys` of
    the spec. A sample's time is that of its slowest worker."""
    workload = {"sizes": list(sizes), "stacks": list(stacks), "repeat": repeat, **options}
    experiment = validate(
        {
            "name": "bench-allreduce",
            "workers": num_workers,
            "link": link,
            "channel": {"kind": "tcp", "congestion": congestion},
            "workload": {"kind": "allreduce", **workload},
            "metrics": {"port": None},
            "timeout": "120s",
            **keys,
        }
    )
    plan = plan_here(experiment)
    require(plan)
    screen = Console(stderr=True)
    with (
        Progress(console=screen, transient=True, refresh_per_second=2, disable=not screen.is_terminal) as progress,
        tempfile.TemporaryDirectory(prefix="testbed-bench-") as logs,
        session(plan, run_id=new_run_id(), log_directory=Path(logs)) as bench,
    ):
        measured = AllReduce.model_validate(workload)
        num_samples = sum(map(measured.num_samples, measured.sizes_bytes))
        results = _Results(progress, num_workers * len(stacks) * num_samples)
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
        network_info=plan.network_info,
        one_clock=True,
    )
    return [{**row, "rate_bps": link_spec.rate_bps, "delay_s": link_spec.delay_s} for row in rows]
