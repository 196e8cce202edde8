"""What fusion, order and overlap are held to: whole runs on the same links, one after the other, next to each other.

Computing is time that passes (`workload: synthetic`), so that what a way of joining gradients brings does not depend
on who got the cores.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from testbed.benchmarks.targets import Benchmarks, Row, degraded_runs, quietly, require_standing, target_row
from testbed.errors import RunFailedError
from testbed.experiment.experiment import Experiment, validate
from testbed.record.summary import Summary
from testbed.report.terminal.summary import LiveProgress
from testbed.runner.run import RunStoppedError, run_experiment

EVEN_LAYERS: Final[Mapping[str, Any]] = {
    "link": {"rate": "100mbit"},
    "workload": {
        "kind": "synthetic",
        "layers": ["256KiB"] * 8,
        "forward": "100ms",
        "backward": "200ms",
        "compute_only": 4,
        "warmup": 2,
        "iterations": 20,
    },
    "metrics": {"port": None},
}
"""With four workers computing takes 300 ms, communicating 260 ms, with nothing hidden."""
_LAYERS: Final[Mapping[str, Any]] = {"name": "bench-training", "workers": 4, **EVEN_LAYERS}


def trained(spec: Mapping[str, Any]) -> Summary:
    """What a run of the spec measured, with what computing alone takes. Raises RunFailedError as measured_run()
    does."""
    summary = measured_run(validate(dict(spec)))
    if summary.compute_only_time_s is None:
        raise RunFailedError("; ".join(summary.reasons) or "the run measured no computing alone")
    return summary


def measured_run(experiment: Experiment) -> Summary:
    """What a run measured. Raises RunFailedError where it ended early, measured no iteration, or its numbers do not
    stand."""
    quiet = LiveProgress(Console(quiet=True), enabled=False)
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as output:
        try:
            summary = run_experiment(experiment, output=Path(output), progress=quiet)
        except RunStoppedError as stopped:
            raise RunFailedError(stopped.summary.reasons[0]) from stopped
    if summary.iteration_time_s is None:
        raise RunFailedError("; ".join(summary.reasons) or "the run measured no iteration")
    require_standing("the run", summary.outcome, summary.reasons)
    return summary


def _side_by_side(spec: Mapping[str, Any], fusions: Sequence[Any]) -> tuple[dict[str, Summary], dict[str, float]]:
    """By fusion's name, and what the cores did meanwhile."""
    named = {fusion if isinstance(fusion, str) else fusion["kind"]: fusion for fusion in fusions}
    return quietly(lambda: {name: trained({**spec, "fusion": fusion}) for name, fusion in named.items()})


def _iteration_s(summary: Summary) -> float:
    assert summary.iteration_time_s is not None, "trained() has looked"
    return summary.iteration_time_s.mean


def _facts(runs: Mapping[str, Summary], *rests_on: str) -> Row:
    """Of all runs that were made beside each other; a row is as good as those that its value rests on (all, unless some
    are named)."""
    return {
        "iteration_s": {name: _iteration_s(run) for name, run in runs.items()},
        "exposed_communication_s": {name: run.exposed_communication_s for name, run in runs.items()},
        "outcome": {name: run.outcome for name, run in runs.items()},
        **degraded_runs({name: (runs[name].outcome, runs[name].reasons) for name in rests_on or runs}),
    }


def overlap_rows() -> Iterator[Row]:
    """Layers sent while backward goes on (WFBP), merged, in Horovod's cycles and by priority, beside sending nothing
    before backward has ended."""
    runs, cores = _side_by_side(_LAYERS, ["none", "layers", "merged", "horovod_5ms", "priority"])
    serial = runs["none"]
    compute_s, communication_s = serial.compute_only_time_s, serial.exposed_communication_s
    assert compute_s is not None, "trained() has looked"
    assert communication_s is not None, "every iteration communicates"
    share = min(compute_s, communication_s) / _iteration_s(serial)
    what = "overlap: the lesser of the two, share of the iteration"
    yield target_row(what, share, 0.2, {**cores, **_facts(runs, "none")}, at_least=True)
    layers_s = _iteration_s(runs["layers"])
    over = layers_s / (compute_s + communication_s)
    what = "overlap, layers (WFBP): over computing plus communicating"
    yield target_row(what, over, 0.95, {**cores, **_facts(runs, "none", "layers")})
    for name, what, target in (
        ("merged", "merged (MG-WFBP)", 1.02),
        ("horovod_5ms", "time (Horovod, 5 ms)", None),
        ("priority", "priority (ByteScheduler)", 0.95),
    ):
        facts = {**cores, **_facts(runs, name, "layers")}
        yield target_row(f"overlap, {what}: over layers", _iteration_s(runs[name]) / layers_s, target, facts)


def merging_rows() -> Iterator[Row]:
    """A network of many small tensors on links where every message waits: layer by layer, and merged."""
    workload = {**_LAYERS["workload"], "layers": "mobilenet", "scale": 0.1, "forward": "50ms", "backward": "100ms"}
    spec = {**_LAYERS, "link": {"rate": "100mbit", "delay": "1ms"}, "workload": workload}
    runs, cores = _side_by_side(spec, ["layers", "merged"])
    faster = _iteration_s(runs["layers"]) / _iteration_s(runs["merged"])
    what = "merging (MG-WFBP), mobilenet, 1 ms a link: times the speed of layers"
    yield target_row(what, faster, 1.1, {**cores, **_facts(runs)}, at_least=True)


def rpc_rows() -> Iterator[Row]:
    """Eight workers: a ring of fused gradients beside two parameter servers that get each tensor in a message of its
    own. The targets are what Awan et al. 2019 (CCGRID) saw of Horovod over MPI against gRPC.

    Each of their hosts had cores of its own; here time runs slowly enough for two to do what gRPC costs eight workers
    and two servers.
    """
    lengths = {"kind": "synthetic", "compute_only": 2, "warmup": 2, "iterations": 4}
    servers = {"kind": "parameter_server", "servers": 2}
    for network, scale, backward, target in (("resnet50", 0.05, "250ms", 1.8), ("mobilenet", 0.2, "100ms", 3.2)):
        workload = {**lengths, "layers": network, "scale": scale, "forward": "50ms", "backward": backward}
        spec = {**_LAYERS, "workers": 8, "workload": workload, "dilation": 6}
        ring, cores = quietly(partial(trained, {**spec, "fusion": {"bytes": "64MiB"}}))
        for channel in ("grpc", "grpc_bulk", "tcp"):
            served = trained({**spec, "collective": servers, "channel": channel, "fusion": "layers"})
            details = {**cores, **_facts({"ring": ring, channel: served})}
            faster = _iteration_s(served) / _iteration_s(ring)
            what = f"ring/tcp, fused, {network}: times the speed of servers over {channel}"
            yield target_row(what, faster, target if channel == "grpc" else None, details, at_least=True)


BENCHMARKS: Final[Benchmarks] = {"overlap": overlap_rows, "merging": merging_rows, "rpc": rpc_rows}
