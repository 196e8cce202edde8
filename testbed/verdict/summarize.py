"""From facts to numbers: the definitions of everything in summary.json (docs/definitions.md). Pure.

Times in the frames are wall seconds since the run's epoch; results are virtual seconds, wall / dilation. Rates and
delays of links are virtual too: what the spec asks for.
"""

import math

import numpy as np
import polars as pl

from testbed.experiment.clock import Clock
from testbed.record.summary import (
    AggregatorSummary,
    AllReduceSummary,
    Checks,
    CompressionSummary,
    LinkSummary,
    LossValues,
    PredictionSummary,
    Quantiles,
    Results,
    Summary,
    SynchronisationSummary,
    WaitingSummary,
)
from testbed.system.intervals import Floats, union
from testbed.theory.predict import RunPrediction
from testbed.verdict.changes import summarize_changes
from testbed.verdict.facts import Facts
from testbed.verdict.judge import judge
from testbed.verdict.machine import machine_summary
from testbed.verdict.pace import pace_summary
from testbed.verdict.parts import by_rounds, per_iteration, worker_parts
from testbed.verdict.scaling import compute_only_time_s, rests_on_compute_only, scaling
from testbed.verdict.stages import stages_summary, storage_summary
from testbed.verdict.stragglers import worker_summaries
from testbed.verdict.thresholds import OTHER_LOAD_INVALID, RUN_QUEUE_DEGRADED
from testbed.verdict.utilization import busy, busy_utilization, mean_utilization
from testbed.verdict.waiting import is_withheld, waiting_summary


def summarize(facts: Facts) -> Summary:
    """What a run has measured, and what that is worth."""
    results = measure(facts)
    measured = {name: getattr(results, name) for name in Results.model_fields}
    return Summary(**measured, **judge(facts, results)._asdict())


def measure(facts: Facts) -> Results:
    """The results of a run, whole or cut short. What cannot be known is None, never a made-up number."""
    shape = {"num_workers": facts.num_workers, "dilation": facts.dilation}
    iterations = per_iteration(facts.iterations, **shape, ends_together=facts.ends_together)  # type: ignore[arg-type]
    typical = by_rounds(iterations, facts.exchange_every)
    whole = typical.height > 0
    mean_s = _mean(typical, "time_s")
    throughput_s = mean_s if facts.in_step else _own_time_s(facts)
    without_s = compute_only_time_s(
        facts.iterations,
        num_workers=facts.num_workers,
        dilation=facts.dilation,
        every=1 if facts.exchanges_always else facts.exchange_every,
    )
    pace = pace_summary(facts.iterations, dilation=facts.dilation)
    found = scaling(facts.iterations, num_workers=facts.num_workers, dilation=facts.dilation, iteration_s=throughput_s)
    others = facts.other_programs.get("compute_only")
    if others and rests_on_compute_only(found.factor, pace) and others.taken_share > OTHER_LOAD_INVALID:
        without_s = None
    digests = set(facts.parameters_sha256)
    begun_s = facts.window[0] if facts.window else 0.0
    waiting = waiting_summary(facts)
    withheld = _withheld(waiting) if waiting is not None and is_withheld(waiting) else None
    allreduce = _allreduce(facts, withheld)
    measured = facts.other_programs.get("measured")
    return Results(
        name=facts.name,
        run_id=facts.run_id,
        spec_sha256=facts.spec_sha256,
        setup=facts.setup,
        computing=facts.computing,
        pace=pace,
        started_at=facts.started_at,
        epoch_s=facts.epoch_s,
        num_workers=facts.num_workers,
        num_iterations=iterations.height,
        replays_graph=facts.replays_graph,
        dilation=facts.dilation,
        iteration_time_s=quantiles(typical["time_s"].to_numpy()) if whole else None,
        compute_time_s=_mean(typical, "compute_s"),
        data_time_s=_mean(typical, "data_s"),
        waiting_time_s=_mean(typical, "waiting_s"),
        exposed_communication_s=_mean(typical, "exposed_s"),
        optimizer_time_s=_mean(typical, "optimizer_s"),
        other_time_s=_mean(typical, "other_s"),
        compute_only_time_s=without_s,
        compute_alone_time_s=found.alone_s,
        compute_contention=found.contention,
        samples_per_s=_samples_per_s(typical, throughput_s),
        scaling_factor=found.factor,
        scaling_factor_missing=found.missing,
        network_efficiency=without_s / mean_s if without_s is not None and mean_s else None,
        loss=_losses(iterations),
        parameters_sha256=next(iter(digests)) if len(digests) == 1 else None,
        workers=worker_summaries(facts, found.workers),
        links=_links(facts, withheld=withheld is not None),
        background=list(facts.background),
        aggregators=_aggregators(facts, withheld=withheld is not None),
        machine=machine_summary(
            facts.machine, facts.window, busy(facts), others_share=measured.share if measured else None
        ),
        allreduce=allreduce,
        waiting=waiting,
        prediction=_prediction(facts.predicted, mean_s, allreduce),
        compression=_compression(facts),
        synchronisation=_synchronisation(facts),
        command=facts.command,
        uss_bytes=list(facts.uss_bytes),
        overhead_s=dict(facts.overhead_s),
        captures=list(facts.captures),
        prometheus=facts.prometheus,
        changes=summarize_changes(facts.changes, origin_s=begun_s, dilation=facts.dilation),
        num_changes_not_reached=facts.num_changes_not_reached,
        changes_late_s=facts.changes_late_s,
        stages=stages_summary(facts),
        storage=storage_summary(facts),
        record=facts.record,
        checked=_checks(facts),
    )


def quantiles(values: Floats) -> Quantiles:
    """Mean, median and percentiles of at least one value."""
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    return Quantiles(mean=float(np.mean(values)), median=median, p10=p10, p90=p90)


def _mean(frame: pl.DataFrame, column: str) -> float | None:
    return float(frame[column].to_numpy().mean()) if frame.height else None


def _own_time_s(facts: Facts) -> float | None:
    """Of workers that do not wait for each other, the iteration of as many alike that make as many samples a second:
    the harmonic mean over workers of their mean iterations, since their throughputs add up."""
    parts = worker_parts(facts.iterations, num_workers=facts.num_workers, ends_together=False)
    own_s = parts.group_by("rank").agg(pl.col("time_s").mean())["time_s"].to_numpy()
    return float(len(own_s) / np.sum(1 / own_s)) / facts.dilation if len(own_s) else None


def _samples_per_s(iterations: pl.DataFrame, mean_s: float | None) -> float | None:
    num_samples = _mean(iterations, "num_samples")
    return num_samples / mean_s if mean_s and num_samples else None  # a generated trace has no samples


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


def _allreduce(facts: Facts, withheld: str | None) -> AllReduceSummary | None:
    """`withheld`: why no time is given."""
    prediction = facts.prediction
    measured = facts.buckets.filter(pl.col("phase") == "measured")
    if prediction is None or measured.is_empty():
        return None
    # What lies before the last member's hand-over is that member's computing (testbed.verdict.utilization.under_way).
    ready_s = pl.col("enqueued_s").max().over("index", "sequence") if facts.in_step else pl.col("started_s")
    waited_for = measured.with_columns(started_s=pl.max_horizontal("started_s", ready_s))
    longest: dict[int, float] = {}
    for (index, _), rows in waited_for.group_by("index", "rank"):
        key = int(str(index))
        longest[key] = max(longest.get(key, 0.0), _in_service_s(rows))
    spans = [_in_service_s(rows) for _, rows in measured.group_by("index")]
    return AllReduceSummary(
        size_bytes=prediction.gradient_bytes,
        time_s=float(np.median(list(longest.values()))) / facts.dilation if withheld is None else None,
        span_s=float(np.median(spans)) / facts.dilation if withheld is None else None,
        missing=withheld,
        bound_s=prediction.bound_s,
        schedule_bound_s=prediction.schedule_bound_s,
        predicted_s=prediction.predicted_s,
        bottleneck=prediction.bottleneck,
    )


def _in_service_s(buckets: pl.DataFrame) -> float:
    """For how long, in real time, at least one of these buckets was in service."""
    starts, ends = union(buckets["started_s"].to_numpy(), buckets["done_s"].to_numpy())
    return float(np.sum(ends - starts))


def _withheld(waiting: WaitingSummary) -> str:
    return (
        f"up to {100 * waiting.of_communication:.0f} % of it may have been waiting for a core (limit "
        f"{100 * RUN_QUEUE_DEGRADED:.0f} %), and up to {100 * waiting.of_iterations:.1f} % of the iterations; use a "
        "larger dilation"
    )


def _prediction(
    predicted: RunPrediction | None, mean_s: float | None, allreduce: AllReduceSummary | None
) -> PredictionSummary | None:
    """What was said before, beside what came of it."""
    if predicted is None:
        return None
    time_s, expected = predicted.iteration_time_s, predicted.expected
    return PredictionSummary(
        iteration_time_s=time_s,
        missing=predicted.missing,
        iteration_error=time_s / mean_s - 1 if time_s is not None and mean_s else None,
        allreduce_error=allreduce.predicted_s / allreduce.time_s - 1 if allreduce and allreduce.time_s else None,
        expected_error=None if expected is None else expected.error,
        expected_error_source=None if expected is None else expected.source,
        num_points=0 if expected is None else expected.num_points,
        outside=list(predicted.outside),
        fitted_at=predicted.fitted_at,
    )


def _per_iteration(buckets: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Sums over the measured iterations' buckets, as means over workers: a row per iteration."""
    measured = buckets.filter(pl.col("phase") == "measured")
    sums = measured.group_by("index", "rank").agg(pl.col(*columns).sum())
    return sums.group_by("index").agg(pl.col(*columns).mean())


def payload_bytes_per_iteration(buckets: pl.DataFrame) -> float | None:
    """What a worker handed to collectives in an iteration: mean. None where no bucket was measured."""
    return _mean(_per_iteration(buckets, "payload_bytes"), "payload_bytes")


def _compression(facts: Facts) -> CompressionSummary | None:
    payload_bytes = payload_bytes_per_iteration(facts.buckets)
    if facts.compression is None or payload_bytes is None:
        return None
    codec = _per_iteration(facts.buckets, "encode_s", "decode_s")
    clock = Clock(facts.dilation).of_hosts(facts.host_cost)
    return CompressionSummary(
        kind=facts.compression,
        gradient_bytes=facts.gradient_bytes,
        payload_bytes=payload_bytes,
        payload_ratio=payload_bytes / facts.gradient_bytes,
        traffic_ratio=facts.traffic_ratio,
        encode_s=clock.virtual_s(float(np.median(codec["encode_s"].to_numpy()))),
        decode_s=clock.virtual_s(float(np.median(codec["decode_s"].to_numpy()))),
    )


def _synchronisation(facts: Facts) -> SynchronisationSummary | None:
    ages = facts.iterations.filter(pl.col("phase") == "measured")["staleness"]
    if facts.exchanges_always or ages.is_empty():
        return None
    counts = ages.value_counts().sort("staleness")
    return SynchronisationSummary(
        kind=facts.synchronisation,
        every=facts.exchange_every,
        num_exchanges=facts.num_exchanges,
        staleness=dict(zip(counts["staleness"].to_list(), counts["count"].to_list(), strict=True)),
        staleness_mean=float(ages.to_numpy().mean()),
    )


def _aggregators(facts: Facts, *, withheld: bool) -> list[AggregatorSummary]:
    """`withheld`: how long exchanges took is, and so is how long each of their chunks did, which waited for the same
    cores."""
    if not withheld:
        return list(facts.aggregators)
    return [each.model_copy(update={"slot_latency": None}) for each in facts.aggregators]


def _links(facts: Facts, *, withheld: bool) -> list[LinkSummary]:
    """`withheld`: how long exchanges took is, and so is what links carried in that time."""
    busy_times = {since_first: busy(facts, since="first" if since_first else "last") for since_first in (False, True)}
    return [
        LinkSummary(
            name=link.name,
            from_=link.from_,
            to=link.to,
            rate_bps=link.rate_bps,
            delay_s=link.delay_s,
            measured_rate_bps=link.measured_rate_bps,
            measured_delay_s=link.measured_delay_s,
            rate_measured_on=link.rate_measured_on,
            rate_from_cache=link.rate_from_cache,
            bytes=link.bytes,
            expected_bytes=link.expected_bytes,
            input_bytes=link.input_bytes,
            acknowledgement_bytes=link.acknowledgement_bytes,
            background_bytes=link.background_bytes,
            background_utilization=None
            if link.background_bytes is None
            else mean_utilization(facts, link, link.background_bytes),
            retransmitted_bytes=link.retransmitted_bytes,
            utilization_mean=mean_utilization(facts, link, link.class_bytes),
            utilization_busy=None if withheld else busy_utilization(facts, link, busy_times[link.to_server]),
            drops=link.drops,
            delay_line=link.delay_line,
            backlog=link.backlog,
        )
        for link in facts.links
    ]


def _checks(facts: Facts) -> Checks:
    rated = [link for link in facts.links if link.measured_rate_bps is not None]
    return Checks(
        num_directions=len(facts.links),
        num_bytes=sum(link.expected_bytes is not None for link in facts.links),
        num_rates=len(rated),
        num_rates_own=sum(link.has_own_rate for link in rated),
        num_delays=sum(link.measured_delay_s is not None for link in facts.links),
        num_gradient_threads=None if facts.gradient_threads is None else facts.gradient_threads.num_first,
        not_checked=list(facts.not_checked),
    )
