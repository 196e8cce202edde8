"""Every counter of a run at one moment."""

import time
from dataclasses import dataclass
from pathlib import Path

from testbed.experiment.delay_backends.base import DelayCounters
from testbed.hosts.base import Throttling
from testbed.hosts.cgroups import own_throttling
from testbed.measure.connections import Connection
from testbed.measure.machine import MachineSample
from testbed.measure.sampler import LinkSample, LinkSampler
from testbed.plan.background import FlowCounters


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Every counter at one border of the measured window, read while all workers wait in a barrier."""

    samples: dict[tuple[str, str], LinkSample]
    """By link and sending node."""
    connections: dict[str, dict[tuple[tuple[str, int], tuple[str, int]], Connection]]
    """By node, then by local and remote end."""
    delay_counters: dict[tuple[str, str], DelayCounters]
    """By link and sending node; only where a daemon makes the delay."""
    machine: MachineSample
    throttling: dict[str, Throttling]
    """What the CPU quotas that the spec asks for have done, by worker."""
    background: list[FlowCounters]
    """Of each background flow of the plan."""
    serving_delays_s: dict[str, dict[int, float]]
    """Run-queue delay of each thread of parameter servers and aggregators, by the process' name."""
    at_s: float
    """time.monotonic() when the first counter was read."""
    took_s: float
    """From the first counter read to the last: what flows meanwhile is in one and not in the other."""
    own_throttling: dict[Path, Throttling]
    """What quotas on the whole testbed, a container's say, have done, by control group."""

    @classmethod
    def take(cls, sampler: LinkSampler) -> "Snapshot":
        """Read everything now; what background flows go on changing first, and close together."""
        begun_s = time.monotonic()
        samples, background = sampler.sample(), sampler.background_counters()
        connections = sampler.connections()
        took_s = time.monotonic() - begun_s
        return cls(
            samples={(sample.link, sample.node): sample for sample in samples},
            connections={
                node: {(connection.local, connection.remote): connection for connection in connections}
                for node, connections in connections.items()
            },
            delay_counters=sampler.delay_counters(),
            machine=MachineSample.take(),
            throttling=sampler.throttling(),
            own_throttling=own_throttling(),
            background=background,
            serving_delays_s=sampler.serving_delays_s(),
            at_s=begun_s,
            took_s=took_s,
        )
