"""What a summary is made from: the frames, and what else a run knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.summary import (
    AggregatorSummary,
    BackgroundSummary,
    BacklogSummary,
    CaptureSummary,
    DelayLine,
    Outcome,
    PrometheusSummary,
)
from testbed.verdict.judge import LATENESS_FLOOR_S, BacklogEvidence, LinkEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFacts:
    """One direction of one link: what was asked, what was calibrated, its counters around the measured
    iterations."""

    name: str
    from_: str
    to: str
    rate_bps: float
    delay_s: float
    measured_rate_bps: float | None
    measured_delay_s: float | None
    expected_bytes: int | None
    """What the schedule sends over this direction in all measured iterations, headers included; None: not
    known."""
    class_bytes_start: int
    class_bytes_end: int
    drops_start: int
    drops_end: int
    acknowledgement_bytes: int
    """Pure acknowledgements counted by the class in between, as far as they have only one path."""
    retransmitted_bytes: int
    background_bytes: int | None = 0
    """Of background flows that surely crossed, headers included; None where they could have taken another path."""
    background_uncertain_bytes: int = 0
    """Of background flows that may have been counted besides, or not yet."""
    delay_line: DelayLine | None = None
    """In between; None where no daemon makes the delay."""
    backlog: BacklogSummary | None = None
    """In between."""

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

    def evidence(self, *, may_drop: bool, lateness_floor_s: float = LATENESS_FLOOR_S) -> LinkEvidence:
        """What the verdict looks at; see :class:`LinkEvidence` for the argument."""
        return LinkEvidence(
            name=f"{self.from_} → {self.to}",
            rate_bps=self.rate_bps,
            measured_rate_bps=self.measured_rate_bps,
            bytes=self.bytes,
            expected_bytes=self.expected_bytes,
            retransmitted_bytes=self.retransmitted_bytes,
            drops=self.drops,
            may_drop=may_drop,
            delay_s=self.delay_s,
            late_s=self.delay_line.late_p99_s if self.delay_line else None,
            latest_s=self.delay_line.late_max_s if self.delay_line else None,
            lateness_floor_s=lateness_floor_s,
            delay_drops=self.delay_line.num_dropped if self.delay_line else 0,
            uncertain_bytes=self.background_uncertain_bytes,
            backlog=BacklogEvidence(
                num_probes=self.backlog.num_probes,
                due_bytes=self.backlog.due_bytes,
                sent_bytes=self.backlog.sent_bytes,
                chance=self.backlog.chance,
            )
            if self.backlog
            else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceFacts:
    """What theory says about one iteration's all-reduce, all buckets together; virtual seconds."""

    size_bytes: int
    bound_s: float
    predicted_s: float
    bottleneck: str | None = None
    """Whose bytes decide `predicted_s`, where not the cost model does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionFacts:
    """What the gradients of one iteration are without compression."""

    kind: str
    gradient_bytes: int
    traffic_ratio: float | None
    """Bytes that the workers' links carried over what they would have carried without; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandFacts:
    """A user's program in every worker; seconds since the run's epoch."""

    argv: Sequence[str]
    backend: str | None
    redirected: Sequence[str]
    launcher: bool
    start_s: float
    end_s: float
    exits: Sequence[tuple[str, int, float]]
    """Worker, status, and when it had ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SynchronisationFacts:
    """How workers synchronised, where not in every iteration."""

    kind: str
    every: int | None
    num_exchanges: int | None
    in_step: bool
    """Whether they wait for each other at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Everything a summary is made from."""

    name: str
    run_id: str
    spec_sha256: str
    setup: str
    computing: str = ""
    """What of computing is real."""
    started_at: str
    epoch_s: float
    outcome: Outcome
    reasons: Sequence[str]
    num_workers: int
    dilation: float
    record: str
    iterations: pl.DataFrame
    """ITERATION_SCHEMA; may be empty or end early where the run failed."""
    buckets: pl.DataFrame
    """BUCKET_SCHEMA."""
    samples: pl.DataFrame
    """LINK_SCHEMA."""
    machine: pl.DataFrame
    """MACHINE_SCHEMA."""
    links: Sequence[LinkFacts] = ()
    background: Sequence[BackgroundSummary] = ()
    aggregators: Sequence[AggregatorSummary] = ()
    allreduce: AllReduceFacts | None = None
    compression: CompressionFacts | None = None
    """None: nothing is compressed."""
    synchronisation: SynchronisationFacts | None = None
    """None: in every iteration."""
    command: CommandFacts | None = None
    """None: the workload is one of ours."""
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""
    captures: Sequence[CaptureSummary] = ()
    prometheus: PrometheusSummary | None = None
    changes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CHANGE_SCHEMA))
    """CHANGE_SCHEMA."""
    num_changes_not_reached: int = 0
    unshared_memory_bytes: Sequence[int] = ()
    """Of each worker."""
    parameters_sha256: Sequence[str] = ()
    """Of each worker's final parameters."""
