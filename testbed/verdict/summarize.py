"""From frames and facts to the summary: pure arithmetic, every definition in one place.

Frames carry wall seconds since the run's epoch; results are virtual seconds, wall / dilation. Rates and
delays of links are virtual too: what the spec asks for.
"""

import math

import numpy as np
import polars as pl

from testbed.experiment.link import MAX_RATE_BPS
from testbed.record.summary import (
    AllReduceSummary,
    CommandExit,
    CommandSummary,
    CompressionSummary,
    LinkSummary,
    LossValues,
    Quantiles,
    Summary,
    SynchronisationSummary,
)
from testbed.verdict.changes import RateHistory, summarize_changes
from testbed.verdict.facts import Inputs, LinkFacts
from testbed.verdict.intervals import Floats, bytes_while_busy, even_bytes_between, union
from testbed.verdict.machine import busy_times, machine_summary, measured_window
from testbed.verdict.pace import pace_summary
from testbed.verdict.stragglers import worker_summaries


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
    typical = by_rounds(iterations, inputs.synchronisation.every) if inputs.synchronisation else iterations
    times = typical["time_s"].to_numpy()
    whole = len(times) > 0
    median_s = float(np.median(times)) if whole else None
    compute_only_s = compute_only_time_s(inputs.iterations, num_workers=inputs.num_workers, dilation=inputs.dilation)
    scaling = compute_only_s / median_s if compute_only_s is not None and median_s else None
    return Summary(
        name=inputs.name,
        run_id=inputs.run_id,
        spec_sha256=inputs.spec_sha256,
        setup=inputs.setup,
        computing=inputs.computing,
        pace=pace_summary(inputs.iterations, dilation=inputs.dilation),
        started_at=inputs.started_at,
        epoch_s=inputs.epoch_s,
        outcome=outcome,
        reasons=reasons,
        num_workers=inputs.num_workers,
        num_iterations=iterations.height,
        dilation=inputs.dilation,
        iteration_time_s=quantiles(times) if whole else None,
        compute_time_s=_median(typical, "compute_s"),
        exposed_communication_s=_median(typical, "exposed_s"),
        other_time_s=_median(typical, "other_s"),
        compute_only_time_s=compute_only_s,
        samples_per_s=_samples_per_s(typical, median_s),
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


def by_rounds(iterations: pl.DataFrame, every: int | None) -> pl.DataFrame:
    """Of `per_iteration`'s rows one for each round of so many iterations that exchange once, their mean: workers that
    average now and then have iterations of two kinds, and a median would be that of one kind. A last round
    that is shorter counts only where it is the only one."""
    if every is None:
        return iterations
    rounds = (
        iterations.with_row_index("row")
        .group_by(pl.col("row") // every)
        .agg(pl.len().alias("num_rows"), pl.col("time_s", "compute_s", "exposed_s", "other_s", "num_samples").mean())
        .sort("row")
    )
    whole = rounds.filter(pl.col("num_rows") == every)
    return whole if whole.height else rounds


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


def quantiles(values: Floats) -> Quantiles:
    """Of at least one value."""
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    return Quantiles(median=median, p10=p10, p90=p90)


def _median(frame: pl.DataFrame, column: str) -> float | None:
    return float(np.median(frame[column].to_numpy())) if frame.height else None


def _samples_per_s(iterations: pl.DataFrame, median_s: float | None) -> float | None:
    num_samples = float(np.median(iterations["num_samples"].to_numpy())) if median_s else 0.0
    return num_samples / median_s if median_s and num_samples else None  # a generated trace has no samples


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
    window = measured_window(inputs.iterations) or ((command.start_s, command.end_s) if command else (0.0, 0.0))
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


def _command(inputs: Inputs) -> CommandSummary | None:
    facts = inputs.command
    if facts is None:
        return None
    return CommandSummary(
        argv=list(facts.argv),
        backend=facts.backend,
        redirected=list(facts.redirected),
        launcher=facts.launcher,
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
