"""From frames and facts to the summary: pure arithmetic, every definition in one place.

Frames carry wall seconds since the run's epoch; results are virtual seconds, wall / dilation. Rates and
delays of links are virtual too: what the spec asks for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from testbed.fidelity import RATE_TOLERANCE, BacklogEvidence, LinkEvidence
from testbed.links.spec import MAX_RATE_BPS
from testbed.results.changes import RateHistory, summarize_changes
from testbed.results.frames import CHANGE_SCHEMA
from testbed.results.stragglers import worker_summaries
from testbed.results.summary import (
    AggregatorSummary,
    AllReduceSummary,
    BackgroundSummary,
    BacklogSummary,
    CaptureSummary,
    CommandExit,
    CommandSummary,
    CompressionSummary,
    DelayLine,
    LinkSummary,
    LossValues,
    MachineSummary,
    Outcome,
    PrometheusSummary,
    Quantiles,
    Summary,
    SynchronisationSummary,
)

Floats = npt.NDArray[np.float64]
BUSY_SHARE: Final = 0.01
"""Of its rate: a link that carries less has nothing to do but a heartbeat."""
SATURATED_IDLE_SHARE: Final = 0.05
"""With less of the cores' time idle between two samples, somebody waited for a core."""


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

    def evidence(self, *, may_drop: bool) -> LinkEvidence:
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
    """Whose bytes decide `predicted_s`, where not the alpha-beta model does."""


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


def summarize(inputs: Inputs) -> Summary:
    """The summary of a run, whole or cut short. What cannot be known is None, never a made-up number."""
    outcome, reasons = inputs.outcome, list(inputs.reasons)
    digests = set(inputs.parameters_sha256)
    if len(digests) > 1:
        outcome = "failed"
        reasons.insert(0, f"the workers ended with {len(digests)} different sets of parameters; they must be the same")
    iterations = per_iteration(
        inputs.iterations,
        num_workers=inputs.num_workers,
        dilation=inputs.dilation,
        in_step=inputs.synchronisation is None or inputs.synchronisation.in_step,
    )
    times = iterations["time_s"].to_numpy()
    whole = len(times) > 0
    median_s = float(np.median(times)) if whole else None
    compute_only_s = compute_only_time_s(inputs.iterations, num_workers=inputs.num_workers, dilation=inputs.dilation)
    scaling = compute_only_s / median_s if compute_only_s is not None and median_s else None
    return Summary(
        name=inputs.name,
        run_id=inputs.run_id,
        spec_sha256=inputs.spec_sha256,
        started_at=inputs.started_at,
        epoch_s=inputs.epoch_s,
        outcome=outcome,
        reasons=reasons,
        num_workers=inputs.num_workers,
        num_iterations=len(times),
        dilation=inputs.dilation,
        iteration_time_s=quantiles(times) if whole else None,
        compute_time_s=_median(iterations, "compute_s"),
        exposed_communication_s=_median(iterations, "exposed_s"),
        other_time_s=_median(iterations, "other_s"),
        compute_only_time_s=compute_only_s,
        samples_per_s=_samples_per_s(iterations, median_s),
        scaling_factor=scaling,
        loss=_losses(iterations),
        parameters_sha256=next(iter(digests)) if len(digests) == 1 else None,
        workers=worker_summaries(inputs.iterations, num_workers=inputs.num_workers, dilation=inputs.dilation),
        links=_links(inputs),
        background=list(inputs.background),
        aggregators=list(inputs.aggregators),
        machine=machine_summary(
            inputs.machine,
            inputs.iterations,
            inputs.buckets,
            window=(inputs.command.start_s, inputs.command.end_s) if inputs.command else None,
            links=inputs.samples if inputs.command else None,
        ),
        allreduce=_allreduce(inputs),
        compression=_compression(inputs),
        synchronisation=_synchronisation(inputs),
        command=_command(inputs),
        unshared_memory_bytes=list(inputs.unshared_memory_bytes),
        overhead_s=dict(inputs.overhead_s),
        captures=list(inputs.captures),
        prometheus=inputs.prometheus,
        changes=summarize_changes(
            inputs.changes,
            origin_s=float(iterations["start_s"][0]) if whole else inputs.command.start_s if inputs.command else 0.0,
            dilation=inputs.dilation,
        ),
        num_changes_not_reached=inputs.num_changes_not_reached,
        record=inputs.record,
    )


def per_iteration(
    iterations: pl.DataFrame, *, num_workers: int, dilation: float, phase: str = "measured", in_step: bool = True
) -> pl.DataFrame:
    """One row per iteration that every worker finished: index, start_s and end_s (wall), and in virtual
    seconds time_s = compute_s + exposed_s + other_s; num_samples, loss.

    time_s is from the first worker's start to the last worker's end. compute_s (forward, backward until the
    last gradient, optimizer) and exposed_s (from the last gradient computed to the last one reduced, and waiting for
    gradients in the next forward pass) are means over workers; other_s is the rest: loading data, bookkeeping,
    waiting for the slowest worker. Of workers that are not `in_step`, that never wait for each other, time_s is the
    mean of their own iterations.
    """
    time_s = (
        pl.col("end_s").max() - pl.col("start_s").min() if in_step else (pl.col("end_s") - pl.col("start_s")).mean()
    )
    compute = (
        pl.col("backward_compute_end_s") - pl.col("start_s") + pl.col("optimizer_end_s") - pl.col("backward_end_s")
    )
    compute -= pl.col("forward_stall_s")
    exposed = pl.col("backward_end_s") - pl.col("backward_compute_end_s") + pl.col("forward_stall_s")
    return (
        iterations.filter(pl.col("phase") == phase)
        .group_by("index")
        .agg(
            pl.len().alias("num_rows"),
            pl.col("start_s").min(),
            pl.col("end_s").max(),
            (time_s / dilation).alias("time_s"),
            (compute.mean() / dilation).alias("compute_s"),
            (exposed.mean() / dilation).alias("exposed_s"),
            pl.col("num_samples").sum(),
            pl.col("loss").mean(),
        )
        .filter(pl.col("num_rows") == num_workers)
        .drop("num_rows")
        .sort("index")
        .with_columns((pl.col("time_s") - pl.col("compute_s") - pl.col("exposed_s")).alias("other_s"))
    )


def compute_only_time_s(iterations: pl.DataFrame, *, num_workers: int, dilation: float) -> float | None:
    """Median iteration of the workers computing at the same time without communicating, in virtual seconds.

    An iteration takes as long as its slowest worker, from that worker's own start: nothing keeps the
    workers in step here, so their drift apart must not count. None without such a phase.
    """
    slowest = (
        iterations.filter(pl.col("phase") == "compute_only")
        .group_by("index")
        .agg(pl.len().alias("num_rows"), (pl.col("end_s") - pl.col("start_s")).max().alias("time_s"))
        .filter(pl.col("num_rows") == num_workers)
    )
    median_s = _median(slowest, "time_s")
    return None if median_s is None else median_s / dilation


def run_queue_share(iterations: pl.DataFrame, buckets: pl.DataFrame) -> float | None:
    """Of the time buckets were in service, the share during which their communication thread waited for a
    core.

    Both summed over workers and measured iterations. None if no bucket was in service.
    """
    measured = buckets.filter(pl.col("phase") == "measured")
    service_s = 0.0
    for _, rows in measured.group_by("rank"):
        starts, ends = union(rows["started_s"].to_numpy(), rows["done_s"].to_numpy())
        service_s += float(np.sum(ends - starts))
    if service_s == 0:
        return None
    waited_s = iterations.filter(pl.col("phase") == "measured")["communication_run_queue_delay_s"].sum()
    return float(waited_s) / service_s


def machine_summary(
    machine: pl.DataFrame,
    iterations: pl.DataFrame,
    buckets: pl.DataFrame,
    *,
    window: tuple[float, float] | None = None,
    links: pl.DataFrame | None = None,
) -> MachineSummary | None:
    """The machine over the measured iterations; None if it was not sampled twice in them. A command has no iterations
    but a window, and communicates while `links` (LINK_SCHEMA) are busy."""
    window = _measured_window(iterations) or window
    if window is None:
        return None
    samples = machine.filter(pl.col("at_s").is_between(*window)).sort("at_s")
    if samples.height < 2:
        return None
    ticks, idle, steal = (np.diff(samples[name].to_numpy()) for name in ("ticks", "idle_ticks", "steal_ticks"))
    total = float(max(ticks.sum(), 1))
    in_service = buckets.filter(pl.col("phase") == "measured")
    if links is None:
        busy = union(in_service["started_s"].to_numpy(), in_service["done_s"].to_numpy())
    else:
        busy = busy_times(links, window)
    busy_s = _busy_between(samples["at_s"].to_numpy(), busy)
    saturated = idle < SATURATED_IDLE_SHARE * ticks
    return MachineSummary(
        idle_share=float(idle.sum()) / total,
        steal_share=float(steal.sum()) / total,
        saturated_share=float(busy_s[saturated].sum() / busy_s.sum()) if busy_s.sum() > 0 else None,
        softnet_drops=int(samples["softnet_drops"][-1] - samples["softnet_drops"][0]),
        softnet_squeezes=int(samples["softnet_squeezes"][-1] - samples["softnet_squeezes"][0]),
    )


def backlog_summary(probes: pl.DataFrame, *, granule_bytes: int) -> BacklogSummary | None:
    """Of one direction's probes (BACKLOG_SCHEMA); None without any.

    A count of whole granules (packets, super-frames) over a time that begins and ends anywhere errs with a standard
    deviation of granule / sqrt(6).
    """
    if probes.is_empty():
        return None
    due, elapsed_s = probes["due_bytes"].to_numpy(), probes["elapsed_s"].to_numpy()
    held = np.abs(probes["sent_bytes"].to_numpy() - due) <= granule_bytes + RATE_TOLERANCE * due
    return BacklogSummary(
        num_probes=probes.height,
        watched_s=float(elapsed_s.sum()),
        due_bytes=float(due.sum()),
        sent_bytes=int(probes["sent_bytes"].sum()),
        held_share=float(elapsed_s[held].sum() / elapsed_s.sum()),
        chance=3 * granule_bytes * math.sqrt(probes.height / 6) / float(due.sum()),
    )


def quantiles(values: Floats) -> Quantiles:
    """Of at least one value."""
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    return Quantiles(median=median, p10=p10, p90=p90)


def union(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The same set of times as disjoint intervals in order."""
    order = np.argsort(starts)
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), dtype=bool)
    opens[1:] = starts[1:] > reach[:-1]
    closes = np.append(opens[1:], True)[: len(starts)]
    return starts[opens], reach[closes]


def bytes_while_busy(at_s: Floats, counter: Floats, busy: tuple[Floats, Floats]) -> float:
    """Bytes of a cumulative counter that passed during the busy times (disjoint, in order).

    Between two samples the counter is taken to have moved evenly over the busy part of the interval and not
    at all in the rest: only buckets in service put bytes on these links. Interpolating over the whole
    interval would smear 10 Hz samples across gaps shorter than 100 ms and hide exactly the difference this
    number is for.
    """
    return float(np.sum(np.diff(counter)[_busy_between(at_s, busy) > 0]))


def _busy_between(at_s: Floats, busy: tuple[Floats, Floats]) -> Floats:
    """Busy seconds (disjoint times, in order) between each two moments."""
    starts, ends = busy
    if len(starts) == 0:
        return np.zeros(max(0, len(at_s) - 1))
    knots = np.column_stack([starts, ends]).ravel()
    busy_until = np.repeat(np.cumsum(ends - starts), 2)
    busy_until[0::2] -= ends - starts
    return np.diff(np.interp(at_s, knots, busy_until))


def even_bytes_between(at_s: Floats, counter: Floats, busy: tuple[Floats, Floats]) -> float:
    """Bytes of a cumulative counter that passed during these times, taken to have moved evenly between samples."""
    starts, ends = busy
    return float(np.sum(np.interp(ends, at_s, counter) - np.interp(starts, at_s, counter)))


def _median(frame: pl.DataFrame, column: str) -> float | None:
    return float(np.median(frame[column].to_numpy())) if frame.height else None


def _samples_per_s(iterations: pl.DataFrame, median_s: float | None) -> float | None:
    return float(np.median(iterations["num_samples"].to_numpy())) / median_s if median_s else None


def _losses(iterations: pl.DataFrame) -> LossValues | None:
    """None where no iteration has a loss: the workload has none."""
    losses = iterations["loss"].to_list()
    if all(loss is None or not math.isfinite(loss) for loss in losses):
        return None
    finite = [loss if loss is not None and math.isfinite(loss) else None for loss in losses]
    tail = finite[-max(1, len(finite) // 10) :]
    numbers = [loss for loss in tail if loss is not None]
    end = sum(numbers) / len(numbers) if len(numbers) == len(tail) else None
    return LossValues(first=finite[0], last=finite[-1], end=end)


def _allreduce(inputs: Inputs) -> AllReduceSummary | None:
    facts = inputs.allreduce
    measured = inputs.buckets.filter(pl.col("phase") == "measured")
    if facts is None or measured.is_empty():
        return None
    longest: dict[int, float] = {}
    for (index, _), rows in measured.group_by("index", "rank"):
        starts, ends = union(rows["started_s"].to_numpy(), rows["done_s"].to_numpy())
        key = int(str(index))
        longest[key] = max(longest.get(key, 0.0), float(np.sum(ends - starts)))
    return AllReduceSummary(
        size_bytes=facts.size_bytes,
        time_s=float(np.median(list(longest.values()))) / inputs.dilation,
        bound_s=facts.bound_s,
        predicted_s=facts.predicted_s,
        bottleneck=facts.bottleneck,
    )


def _per_iteration(buckets: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Sums over the measured iterations' buckets, as means over workers: a row per iteration."""
    measured = buckets.filter(pl.col("phase") == "measured")
    sums = measured.group_by("index", "rank").agg(pl.col(*columns).sum())
    return sums.group_by("index").agg(pl.col(*columns).mean())


def payload_bytes_per_iteration(buckets: pl.DataFrame) -> float | None:
    """What a worker handed to collectives in an iteration: mean. None where no bucket was measured."""
    per_iteration = _per_iteration(buckets, "payload_bytes")
    return float(per_iteration["payload_bytes"].to_numpy().mean()) if per_iteration.height else None


def _compression(inputs: Inputs) -> CompressionSummary | None:
    facts, payload_bytes = inputs.compression, payload_bytes_per_iteration(inputs.buckets)
    if facts is None or payload_bytes is None:
        return None
    codec = _per_iteration(inputs.buckets, "encode_s", "decode_s")
    return CompressionSummary(
        kind=facts.kind,
        gradient_bytes=facts.gradient_bytes,
        payload_bytes=payload_bytes,
        payload_ratio=payload_bytes / facts.gradient_bytes,
        traffic_ratio=facts.traffic_ratio,
        encode_s=float(np.median(codec["encode_s"].to_numpy())) / inputs.dilation,
        decode_s=float(np.median(codec["decode_s"].to_numpy())) / inputs.dilation,
    )


def _synchronisation(inputs: Inputs) -> SynchronisationSummary | None:
    facts = inputs.synchronisation
    ages = inputs.iterations.filter(pl.col("phase") == "measured")["staleness"]
    if facts is None or ages.is_empty():
        return None
    counts = ages.value_counts().sort("staleness")
    return SynchronisationSummary(
        kind=facts.kind,
        every=facts.every,
        num_exchanges=facts.num_exchanges,
        staleness=dict(zip(counts["staleness"].to_list(), counts["count"].to_list(), strict=True)),
        staleness_mean=float(ages.to_numpy().mean()),
    )


def _links(inputs: Inputs) -> list[LinkSummary]:
    command = inputs.command
    window = _measured_window(inputs.iterations) or ((command.start_s, command.end_s) if command else (0.0, 0.0))
    if command is None:
        buckets = inputs.buckets.filter(pl.col("phase") == "measured")
        busy = union(buckets["started_s"].to_numpy(), buckets["done_s"].to_numpy())
    else:
        busy = busy_times(inputs.samples, window)
    busy_s = float(np.sum(busy[1] - busy[0])) / inputs.dilation
    window_s = (window[1] - window[0]) / inputs.dilation
    rows = []
    for link in inputs.links:
        history = RateHistory(inputs.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
        mean_bps = history.mean_bps(np.array([window[0]]), np.array([window[1]]))
        # Background traffic does not wait for buckets: its links are busy at any time.
        between = even_bytes_between if link.background_bytes != 0 else bytes_while_busy
        busy_bytes = between(*_counter(inputs.samples, link, window), busy) if busy_s else 0.0
        rows.append(
            LinkSummary(
                name=link.name,
                from_=link.from_,
                to=link.to,
                rate_bps=link.rate_bps,
                delay_s=link.delay_s,
                measured_rate_bps=link.measured_rate_bps,
                measured_delay_s=link.measured_delay_s,
                bytes=link.bytes,
                expected_bytes=link.expected_bytes,
                acknowledgement_bytes=link.acknowledgement_bytes,
                background_bytes=link.background_bytes,
                background_utilization=None
                if link.background_bytes is None
                else _utilization(link.background_bytes, mean_bps, window_s),
                retransmitted_bytes=link.retransmitted_bytes,
                utilization_mean=_utilization(link.class_bytes, mean_bps, window_s),
                utilization_busy=_utilization(busy_bytes, history.mean_bps(*busy), busy_s),
                drops=link.drops,
                delay_line=link.delay_line,
                backlog=link.backlog,
            )
        )
    return rows


def _measured_window(iterations: pl.DataFrame) -> tuple[float, float] | None:
    """From the first worker's start to the last worker's end, seconds since the epoch; None without iterations."""
    measured = iterations.filter(pl.col("phase") == "measured")
    if measured.is_empty():
        return None
    return float(measured["start_s"].to_numpy().min()), float(measured["end_s"].to_numpy().max())


def busy_times(samples: pl.DataFrame, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Times between two samples in which any link carried more than a hundredth of its rate, disjoint and in order."""
    by_link = pl.col("at_s", "class_bytes").shift(1).over("link", "node", order_by="at_s").name.suffix("_before")
    between = (
        samples.with_columns(by_link)
        .with_columns(pl.max_horizontal(pl.col("at_s_before"), window[0]).alias("begin_s"))
        .with_columns(pl.min_horizontal(pl.col("at_s"), window[1]).alias("end_s"))
        .filter(pl.col("at_s_before").is_not_null() & (pl.col("begin_s") < pl.col("end_s")))
    )
    carried_bps = 8 * (pl.col("class_bytes") - pl.col("class_bytes_before")) / (pl.col("at_s") - pl.col("at_s_before"))
    busy = between.filter(carried_bps > BUSY_SHARE * pl.col("rate_bps"))
    return union(busy["begin_s"].to_numpy(), busy["end_s"].to_numpy())


def _command(inputs: Inputs) -> CommandSummary | None:
    facts = inputs.command
    if facts is None:
        return None
    return CommandSummary(
        argv=list(facts.argv),
        backend=facts.backend,
        redirected=list(facts.redirected),
        start_s=facts.start_s,
        time_s=(facts.end_s - facts.start_s) / inputs.dilation,
        workers=[
            CommandExit(name=name, status=status, time_s=(at_s - facts.start_s) / inputs.dilation)
            for name, status, at_s in facts.exits
        ],
    )


def _counter(samples: pl.DataFrame, link: LinkFacts, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Times and class bytes over the measured window: its samples, and the counters read at both ends."""
    mine = samples.filter(
        (pl.col("link") == link.name)
        & (pl.col("node") == link.from_)
        & (pl.col("at_s") > window[0])
        & (pl.col("at_s") < window[1])
    ).sort("at_s")
    at_s = np.concatenate([[window[0]], mine["at_s"].to_numpy(), [window[1]]])
    counter = np.concatenate([[link.class_bytes_start], mine["class_bytes"].to_numpy(), [link.class_bytes_end]])
    return at_s, counter.astype(np.float64)


def _utilization(num_bytes: float, rate_bps: float, time_s: float) -> float | None:
    if rate_bps > MAX_RATE_BPS:  # unshaped
        return None
    return num_bytes * 8 / (rate_bps * time_s) if time_s > 0 else 0.0
