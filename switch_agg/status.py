"""An aggregator as it is: what its data plane says of itself at one moment."""

import time
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import TypeAdapter

from switch_agg.aggregator import Stragglers
from switch_agg.clock import machine_s, now_s
from switch_agg.core import Address
from switch_agg.dataplanes.base import DataPlane
from switch_agg.job import Job
from switch_agg.switchml import wire as switchml_wire
from switch_agg.wire import frame_bytes

SWITCHML: Final = "switchml"
"""The data plane that serves p4app-switchML's clients (switch_agg.switchml)."""
NUM_STILL: Final = 5
"""Looks in a row at counters that stand still and do not add up, after which they never will."""
LOOK_INTERVAL_S: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """One job, as it is."""

    job: Job
    epoch: int
    stragglers: Stragglers
    busy_slots: int = 0
    """That hold contributions to a chunk whose sum is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """An aggregator, as it is."""

    dataplane: str
    address: str
    jobs: tuple[JobStatus, ...]
    counters: dict[str, int]
    """Of switch_agg.aggregator.Counters, by name."""
    in_flight: int
    violations: tuple[str, ...]
    """Which identities of the counters do not hold: none, ever."""
    uptime_s: float
    """On the machine's clock, as all that an aggregator says of itself."""
    unsent: dict[str, int] = field(default_factory=dict)
    """By host: datagrams to it that the machine refused to send."""
    link_rate_bps: float | None = None
    """Of each worker's link, where somebody has said it."""

    def bound_elements_per_s(self, job: Job) -> float | None:
        """What such links let through of a job: each chunk crosses each of them once each way. None: not known."""
        if self.link_rate_bps is None:
            return None
        frame = switchml_wire.frame_bytes if self.dataplane == SWITCHML else frame_bytes
        return self.link_rate_bps / 8 / frame(job.num_elements) * job.num_values


_ADAPTER = TypeAdapter(Status)


def to_json(status: Status) -> str:
    """For another process."""
    return _ADAPTER.dump_json(status).decode()


def from_json(text: str) -> Status:
    """The inverse. Raises ValueError."""
    return _ADAPTER.validate_json(text)


def status_of(
    plane: DataPlane, *, name: str, address: Address, since_s: float, link_rate_bps: float | None = None
) -> Status:
    """What a data plane says of itself, since when on the protocol's clock; raises what ended it."""
    plane.check()
    counters, in_flight = plane.counters(), plane.in_flight()
    return Status(
        dataplane=name,
        address=f"{address[0]}:{address[1]}",
        jobs=tuple(
            JobStatus(
                job=job,
                epoch=plane.epoch(job.number),
                stragglers=plane.stragglers(job.number),
                busy_slots=plane.busy_slots(job.number),
            )
            for job in plane.jobs
        ),
        counters=asdict(counters),
        in_flight=in_flight,
        violations=tuple(settled(plane) or ()),
        uptime_s=machine_s(now_s() - since_s),
        unsent=dict(plane.unsent()),
        link_rate_bps=link_rate_bps,
    )


def settled(plane: DataPlane, *, num_looks: int = NUM_STILL) -> list[str] | None:
    """Violations that stay: counters and slots are not read at one moment, so traffic in between is none. None: it was
    busy to the last look, and nothing can be said."""
    violations: list[str] = []
    num_still = 0
    for _ in range(num_looks):
        before = plane.counters()
        violations = before.violations(plane.in_flight())
        if not violations:
            return []
        num_still = num_still + 1 if plane.counters() == before else 0
        if num_still == NUM_STILL:
            break
        time.sleep(LOOK_INTERVAL_S)
    return violations if num_still else None
