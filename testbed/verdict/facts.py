"""What a run knows at its end, as plain data: all that results are computed from and all that the verdict looks at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import polars as pl

from testbed.experiment.clock import HostCost
from testbed.measure.observations import Barrier, GradientThreadsNow
from testbed.measure.programs import Programs
from testbed.plan.prediction import Prediction
from testbed.record.frames import (
    BUCKET_SCHEMA,
    CHANGE_SCHEMA,
    ITERATION_SCHEMA,
    LINK_SCHEMA,
    MACHINE_SCHEMA,
    STAGE_SCHEMA,
)
from testbed.record.summary import (
    AggregatorSummary,
    BackgroundSummary,
    BacklogSummary,
    CaptureSummary,
    CommandSummary,
    DelayLine,
    PrometheusSummary,
)
from testbed.theory.predict import RunPrediction


class End(NamedTuple):
    """How a run ended."""

    kind: Literal["completed", "failed", "not calibrated", "unsupported"]
    text: str = ""
    """What ended it, unless it completed."""


COMPLETED: Final = End("completed")


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFacts:
    """One direction of one link: what was requested, what was calibrated, its counters around the measured
    iterations."""

    name: str
    from_: str
    to: str
    rate_bps: float
    """Nominal; virtual, like every rate here."""
    delay_s: float
    measured_rate_bps: float | None
    measured_delay_s: float | None
    expected_bytes: int | None
    """What the schedule sends over this direction in all measured iterations, headers included, and `input_bytes`;
    None: not known."""
    class_bytes_start: int
    class_bytes_end: int
    drops_start: int
    drops_end: int
    acknowledgement_bytes: int
    """Pure acknowledgements counted by the class in between, as far as they have only one path."""
    retransmitted_bytes: int
    input_bytes: int | None = 0
    """Of `expected_bytes`, what reads batches from the storage node; None: not known."""
    counted_s: tuple[float, float] | None = None
    """When the counters around the measured iterations were read; None: as these began and ended."""
    split_bytes: int = 0
    """More than `expected_bytes` that it may be, if no message shares a segment with the next."""
    rate_measured_on: str | None = None
    """The direction that was measured, for all of its class."""
    may_drop: bool = False
    """Chance decides about packets here, the link was down, or background traffic passes: drops and retransmissions
    belong to the experiment."""
    background_bytes: int | None = 0
    """Of background flows that surely crossed, headers included; None where they could have taken another path."""
    background_uncertain_bytes: int = 0
    """Of background flows that may have been counted besides, or not yet."""
    delay_line: DelayLine | None = None
    """In between; None where no daemon makes the delay."""
    backlog: BacklogSummary | None = None
    """In between; None: its queue never held enough to tell."""
    burst_bytes: int = 0
    """May leave at once, whatever the rate."""
    frame_bytes: int = 1514
    """The longest super-frame on it, which is sent whole once it has begun."""
    rate_from_cache: bool = False
    """Whether `measured_rate_bps` was measured before this run."""
    to_server: bool = False
    """To a parameter server on a node of its own, which takes in what each worker pushes before others have handed
    theirs over."""

    @property
    def has_own_rate(self) -> bool:
        """Whether calibration measured the rate of this direction itself, for this run."""
        return self.rate_measured_on == f"{self.from_} -> {self.to}" and not self.rate_from_cache

    @property
    def waits_for_nothing(self) -> bool:
        """Whether something crosses it that does not wait for buckets: background traffic, and what reads batches."""
        return self.background_bytes != 0 or self.input_bytes != 0

    @property
    def title(self) -> str:
        """The direction as people read it: `w0 → s0`."""
        return f"{self.from_} → {self.to}"

    @property
    def class_bytes(self) -> int:
        """Everything that what shapes the link counted."""
        return self.class_bytes_end - self.class_bytes_start

    @property
    def bytes(self) -> int:
        """The same without pure acknowledgements and background traffic: what `expected_bytes` is compared with."""
        return self.class_bytes - self.acknowledgement_bytes - (self.background_bytes or 0)

    @property
    def drops(self) -> int:
        """Packets dropped in between."""
        return self.drops_end - self.drops_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """What a CPU quota did over the measured iterations."""

    name: str
    """The worker's, or whatever else the quota holds."""
    cpu_cores: float | None
    """Requested by the spec; None: nobody requested it."""
    throttled_share: float
    """Of the scheduler's periods, those in which the quota was used up."""
    throttled_s: float
    waiting_share: float | None
    """Run-queue delay of its communication threads over its exposed communication; None: none was exposed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageFacts:
    """What workers were to read from the storage node, and whether it kept up."""

    text: str
    start_bytes: int
    """Before the first iteration, payload, by all workers."""
    start_least_s: float
    """What the disk, or the most loaded link, needs for that; virtual, as the other one."""
    batch_bytes: int
    """For each iteration, payload, by each worker."""
    batch_least_s: float
    waited_share: float = 0.0
    """Run-queue delay of the thread of the node that waited longest, over the time in which it was read from: before
    the first iteration or in the measured ones, whichever is more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderlayFacts:
    """What the network from one machine of the emulation to the other had to carry, and did; real, and the worst of
    what was measured before and after the run."""

    source: str
    target: str
    num_links: int
    """That cross it in this direction."""
    rate_bps: float
    """Of these together."""
    needed_bps: float
    """The same with what VXLAN adds."""
    carried_bps: float
    needed_packet_bytes: int
    path_mtu: int
    round_trip_s: float
    """Median."""
    jitter_s: float
    """By which round trips with nothing else under way differ."""
    jitter_limit_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Of a whole run, or of as much as there was. Tables are those of the record (testbed.record.frames)."""

    name: str
    run_id: str
    spec_sha256: str
    setup: str
    computing: str = ""
    """What of computing is real."""
    started_at: str
    epoch_s: float
    num_workers: int
    dilation: float
    record: str
    end: End = COMPLETED
    iterations: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ITERATION_SCHEMA))
    """May be empty or end early where the run failed."""
    buckets: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BUCKET_SCHEMA))
    samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINK_SCHEMA))
    """Of the links."""
    machine: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MACHINE_SCHEMA))
    changes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CHANGE_SCHEMA))
    stages: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STAGE_SCHEMA))
    launched_s: float | None = None
    """Seconds since the epoch when the first worker was about to be started; None: none was."""
    barriers: Mapping[str, Barrier] = field(default_factory=dict)
    """Those that all workers came to, in seconds since the epoch."""
    storage: StorageFacts | None = None
    """None: data are where they are needed."""
    reading: Sequence[LinkFacts] = ()
    """The links, over what is read before the first iteration; `expected_bytes` is what that puts on them."""
    num_changes_not_reached: int = 0
    changes_late_s: float = 0.0
    """How long after its time a change of the schedule or of a trace had been made in the measured iterations, at most;
    virtual."""
    links: Sequence[LinkFacts] = ()
    underlay: Sequence[UnderlayFacts] = ()
    """By direction between machines; none where all is on one."""
    granule_bytes: int = 1514
    """The largest packet, which is sent whole once it has begun."""
    num_buckets: int = 1
    """In an iteration, as planned: where time decides what is fused there may be more."""
    prediction: Prediction | None = None
    """Of an iteration's exchanges, with the latency that calibration measured; None: nothing is exchanged."""
    predicted: RunPrediction | None = None
    """Of its iterations, before anything was measured; None: nothing is exchanged."""
    compression: str | None = None
    """Its kind; None: gradients travel as they are."""
    gradient_bytes: int = 0
    """Of an iteration, without compression."""
    traffic_ratio: float | None = None
    """Bytes that workers and servers sent over what they would have sent without compression; None: not known."""
    synchronisation: str = "every_iteration"
    in_step: bool = True
    """Whether workers wait for each other at all."""
    replays_graph: bool = False
    """Whether what a worker computes and exchanges is a graph's part: it waits inside an iteration, not at its end."""
    verifies_gradients: bool = False
    """Whether all gradients were gathered over the same links after each iteration."""
    exchanges_always: bool = True
    """Whether workers exchange gradients in every iteration."""
    exchange_every: int | None = None
    """Of local SGD: iterations from one averaging to the next."""
    num_exchanges: int | None = None
    """In which workers exchanged anything; None: each worker in each iteration, by itself."""
    command: CommandSummary | None = None
    """None: the workload is one of ours."""
    command_end_s: float = 0.0
    """Seconds since the epoch at which all of a command's workers had ended."""
    background: Sequence[BackgroundSummary] = ()
    aggregators: Sequence[AggregatorSummary] = ()
    aggregation_violations: Sequence[str] = ()
    """Counters of aggregating switches that do not add up: `aggregator a0 at s0 (ebpf): 7 datagrams received and 6
    accounted for`."""
    aggregation_lost: Sequence[str] = ()
    """Why a switch stopped aggregating."""
    limited_ranks: frozenset[int] = frozenset()
    """Workers that the spec holds to a quota or to cores: they wait by design."""
    quotas: Sequence[Quota] = ()
    """Every CPU quota, requested or not."""
    serving_waited_s: Mapping[str, float] = field(default_factory=dict)
    """How long threads of each parameter server and each aggregator in user space waited for a core over the measured
    iterations, by its name; wall seconds."""
    waits: pl.DataFrame | None = None
    """WAIT_SCHEMA: when threads of workers, parameter servers and aggregators waited for a core, but for those of
    `limited_ranks`; None: not known, and sums stand for it."""
    gradient_threads: GradientThreadsNow | None = None
    """When the measured iterations ended; None: none were to run before those that compute, or could."""
    other_programs: Mapping[str, Programs] = field(default_factory=dict)
    """What they used of the cores by phase, `compute_only` and `measured`, where that is known."""
    steal_share: float = 0.0
    """CPU steal over the measured iterations, as a share of all cores' time."""
    softnet_drops: int = 0
    """Packets that the kernel dropped before they reached a link's port, because its input queue was full."""
    read_back_differences: Sequence[str] = ()
    """What the kernel says after the run, of any link, route or sysctl, where it differs from what was set:
    `w0-eth0: rate is 90000000, requested 100000000`."""
    foreign_changes: Sequence[str] = ()
    """Of settings, while the workers worked, that the run has not made, put back or not: `w0: traffic class set on
    w0-eth0 by process 4711`."""
    interference: Sequence[str] = ()
    """What others did to the run's processes: `w1 was stopped for 2.0 s (SIGSTOP, or a debugger)`."""
    code_changed: bool = False
    """Whether the testbed's sources were others when the run began or ended than when its process did."""
    unused_backend: str | None = None
    """Why the backend that the spec asks for may not be what the numbers are of."""
    notes: Sequence[str] = ()
    """What else a reader of the numbers should know; calls nothing in question."""
    not_checked: Sequence[str] = ()
    """What was not compared with the configuration, and why."""
    prometheus: PrometheusSummary | None = None
    captures: Sequence[CaptureSummary] = ()
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""
    uss_bytes: Sequence[int] = ()
    """Of each worker."""
    parameters_sha256: Sequence[str] = ()
    """Of each worker's final parameters, where they must be the same."""
    host_cost: HostCost = "faster"
    """What CPU time of workers is in virtual time."""

    @property
    def ends_together(self) -> bool:
        """Whether no worker's iteration ends before the last worker's last gradient."""
        return self.in_step and not self.replays_graph

    @property
    def overdue_s(self) -> float:
        """For how long packets were let go later than the verdict allows, in virtual time: of all programs that delay
        any, added up."""
        return sum(link.delay_line.overdue_s for link in self.links if link.delay_line is not None)

    @property
    def num_bursts(self) -> int:
        """In an iteration, of which each may begin with a burst: as planned, or more if more were made in the mean."""
        made = self.buckets.filter(pl.col("phase") == "measured").group_by("rank", "index").len()
        return max(self.num_buckets, 1, 0 if made.is_empty() else math.ceil(float(made["len"].to_numpy().mean())))

    @property
    def at_once_s(self) -> float:
        """How much earlier than the links' rates say the bytes of a time in which they are busy may have left, in
        virtual time: a burst, and the packet that was begun (sch_htb.c), of the link that needs longest for them."""
        shaped = [link for link in self.links if link.burst_bytes]
        return max((8 * (link.burst_bytes + link.frame_bytes) / link.rate_bps for link in shaped), default=0.0)

    @property
    def window(self) -> tuple[float, float] | None:
        """From the first worker's start to the last worker's end of the measured part, seconds since the epoch; None:
        nothing was measured."""
        measured = self.iterations.filter(pl.col("phase") == "measured")
        if not measured.is_empty():
            return float(measured["start_s"].to_numpy().min()), float(measured["end_s"].to_numpy().max())
        return (self.command.start_s, self.command_end_s) if self.command else None
