"""All-reduce of several sizes on several stacks, interleaved on the same links in one run."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.aggregation.facts import violations
from testbed.control.coordinator import Listener
from testbed.doctor import plan_here, require
from testbed.errors import RunFailedError
from testbed.spec.experiment import validate
from testbed.state import new_run_id
from testbed.workbench import workbench
from transports.samples import Row, Sample, summarise


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
