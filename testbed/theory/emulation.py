"""A setting of the what-if as a spec that can be run: what `testbed advise --verify` emulates. Pure."""

from math import ceil, isinf
from typing import Any, Final

from testbed.errors import SpecError
from testbed.theory.advise import Setting
from testbed.traces.formats.layers import layers_text

MAX_INTERVAL: Final = 32
"""Iterations from one synchronisation to the next: two of them are emulated, each in dilated time."""
NUM_ALONE: Final = 8
"""Iterations that all workers together compute alone, at least: see docs/definitions.md, scaling factor."""
NUM_ITERATIONS: Final = 6
_DELAYS_ON_A_PATH: Final = 2
"""From worker to worker on a star."""


def emulated(setting: Setting, trace: str, *, max_efficiency: float) -> dict[str, Any]:
    """The spec, as slow as this machine needs (`dilation: auto`). `max_efficiency` is the share of a link that headers
    leave: what a transport is said not to fill is taken off the links' rate, and what compression is said to save off
    the gradients, whose codec costs nothing.

    Raises SpecError for what would take too long.
    """
    if setting.interval > MAX_INTERVAL:
        raise SpecError(
            f"--verify: averaging every {setting.interval} iterations would take {2 * setting.interval} of them to "
            f"see; allowed: {MAX_INTERVAL} at most (ask for a lower target)"
        )
    table = setting.table.lengthened(setting.batch_factor)
    return {
        "name": "advice",
        "seed": 1,
        "workers": setting.num_workers,
        "link": {
            "rate": f"{setting.rate_bps * setting.efficiency / max_efficiency:.0f}bit",
            "delay": f"{1e6 * setting.latency_s / _DELAYS_ON_A_PATH:g}us",
        },
        "workload": {
            "kind": "replay",
            "trace": {"file": trace, "layers": layers_text(table)},
            "warmup": 2,
            "compute_only": max(2, ceil(NUM_ALONE / setting.num_workers)),
            "iterations": NUM_ITERATIONS if setting.interval == 1 else 2 * setting.interval,
        },
        "collective": {"kind": "in_network", "num_slots": setting.num_slots}
        if setting.aggregated
        else setting.collective,
        # Goes by round trips alone; others look at a clock that cannot be dilated.
        "channel": {"kind": "tcp", "congestion": "reno"},
        "compression": {"kind": "divide", "by": setting.compression_ratio} if setting.compression_ratio > 1 else "none",
        "fusion": _fusion(setting),
        "synchronisation": {"kind": "local_sgd", "every": setting.interval}
        if setting.interval > 1
        else "every_iteration",
        "timeout": "120s",
        "dilation": "auto",
    }


def _fusion(setting: Setting) -> Any:
    fusion = setting.fusion
    if setting.interval > 1:
        return "none"  # all parameters at once, after the last iteration
    if fusion.cycle_s == 0:
        return "layers"
    if isinf(fusion.cycle_s):
        return {"kind": "size", "bytes": f"{fusion.buffer_bytes}B"}
    return {"kind": "time", "bytes": f"{fusion.buffer_bytes}B", "cycle": f"{1e6 * fusion.cycle_s:g}us"}
