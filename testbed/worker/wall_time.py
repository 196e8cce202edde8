"""The one place where durations that a worker was given become durations that it waits.

A spec, and with it everything in a worker's configuration, is in virtual time. Where the run is dilated by k, a worker
waits k times as long for whatever it waits for: computing that is paced or replayed, cycles of fusion, its timeout.
Slowdowns are factors and need nothing. What a worker reports are moments of the wall clock.
"""

from typing import NamedTuple

from testbed.control.worker import WorkerConfiguration
from testbed.experiment.clock import Clock
from testbed.experiment.fusion.base import Fusion
from testbed.experiment.iterative import Iterative
from testbed.traces.schedule import ComputeSchedule


class Durations(NamedTuple):
    """A worker's durations in seconds of the wall clock."""

    schedule: ComputeSchedule | None
    """None: computing takes as long as it takes."""
    fusion: Fusion
    timeout_s: float


def durations_of(options: Iterative, configuration: WorkerConfiguration) -> Durations:
    """The worker's durations in wall time, from its configuration in virtual time."""
    clock, fusion = Clock(configuration.dilation), configuration.fusion
    table = options.layer_table() if options.paced() else None
    if table is not None and fusion.steps_in_forward:
        table = table.updating_in_forward()  # there each layer is stepped when the next forward pass comes to it
    return Durations(
        schedule=None if table is None else ComputeSchedule.of(table).scaled(clock.dilation),
        fusion=clock.real(fusion),
        timeout_s=clock.real_s(configuration.timeout_s),
    )
