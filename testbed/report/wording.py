"""What results are called and how numbers are written for people: one wording for the terminal and the
report."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from transports.units import format_size

if TYPE_CHECKING:  # the record's module imports polars, which showing progress does not need
    from testbed.record.summary import (
        AggregatorSummary,
        AllReduceSummary,
        BackgroundSummary,
        ChangeSummary,
        Checks,
        CommandSummary,
        CompressionSummary,
        LinkSummary,
        MachineSummary,
        Outcome,
        PredictionSummary,
        PrometheusSummary,
        SlotLatency,
        StagesSummary,
        StorageSummary,
        Summary,
        SynchronisationSummary,
        TenantSummary,
        WorkerSummary,
    )
    from transports.collectives.costs import Costs
from testbed.record.number_text import DASH, percent_text, size_text, time_text

OUTCOMES: Final["Mapping[Outcome, str]"] = {
    "valid": "What was checked holds, and the machine kept up.",
    "degraded": "The numbers stand, with reservations.",
    "invalid": "The emulation did not hold; do not draw conclusions from these numbers.",
    "failed": "The run did not complete.",
    "unsupported": "This machine cannot run the experiment.",
}
DEFINITIONS: Final[Mapping[str, str]] = {
    "iteration": "From a worker's start of an iteration to its start of the next: mean over workers and iterations. "
    "Its parts are those of the same iterations, and add up to it.",
    "compute": "Forward and backward pass, until the worker's own last gradient.",
    "data": "Until the batch is where it is computed with: loading, reading from the storage node, copying.",
    "waiting": "From the worker's own last gradient to the slowest worker's.",
    "exposed": "Communication that computing did not hide: from the last worker's last gradient to the last reduced.",
    "optimizer": "The optimizer's step.",
    "other": "Bookkeeping between iterations.",
    "scaling": "T_n / (n T_1): samples a second of {num_workers} workers over {num_workers} times those of one that "
    "computes alone, with the same batch each.",
    "efficiency": "The same {num_workers} workers on the same cores computing without communicating, over the "
    "iteration.",
    "utilization_mean": "What the link carried over what it could have carried in the measured iterations.",
    "utilization_busy": "The same while at least one bucket was under way, from when all of its members had handed "
    "it over; to a parameter server, from when the first had.",
    "background": "What background flows took of the link in the measured iterations; it is in the utilization and not "
    "in the bytes.",
    "bytes": "Counted by what shapes the link, with headers, pure acknowledgements taken out, next to what "
    "the collective's schedule sends; a dash where flows could have taken another of several equal paths, or where a "
    "compressor's payloads depend on the gradients.",
    "shaping_accuracy": "Sent over rate x time, in short times during which the queue surely held packets.",
    "late": "How much later than the delay asks packets were let go by the program that holds them: median, 99th "
    "percentile.",
    "straggler": "How much later than the last but one the last worker handed over its last gradient, over all "
    "measured iterations, those without an exchange as 0: the time for which everyone waited for this worker alone.",
    "allreduce": "Time in which at least one bucket that all workers had handed over was in service on the slowest "
    "worker, all buckets of one iteration together.",
    "critical_path": "Backwards from the worker that ended last: its last bucket, the buckets that this one had to "
    "wait for, and the worker that handed over the first of them last.",
    "slot_latency": "From a chunk's first sending by a worker until its sum is back and the aggregator slot may take "
    "the next one: repetitions and waiting for other workers included, every chunk of the measured iterations counted.",
    "bound": "Of the task: the least that any exchange over the workers' own links needs, without help from "
    "switches or servers.",
    "schedule_bound": "What this collective's own bytes need at least on the most loaded link, those of switches and "
    "servers included.",
    "predicted": "By the cost model, before anything was measured: every message of the schedule on the plan's links, "
    "and what hosts add; or the time the most loaded link that workers share needs, if that is longer.",
}

DEFINITIONS_PAGE: Final = "docs/definitions.md"
"""Where each of these is said with its reasons."""
PARTS: Final[Sequence[tuple[str, str, str, str]]] = (
    ("compute", "compute_time_s", "blue", "compute"),
    ("data", "data_time_s", "bright_black", "data"),
    ("waiting for slower workers", "waiting_time_s", "yellow", "waiting"),
    ("exposed communication", "exposed_communication_s", "red", "exposed"),
    ("optimizer", "optimizer_time_s", "magenta", "optimizer"),
    ("other", "other_time_s", "bright_black", "other"),
)
"""Of an iteration, in the order in which they are shown: name, field of the summary, colour in a terminal,
definition."""

STAGES: Final[Sequence[tuple[str, str]]] = (
    ("start", "start_s"),
    ("reading", "reading_s"),
    ("input", "input_s"),
    ("host to device", "host_to_device_s"),
    ("forward", "forward_s"),
    ("backward", "backward_s"),
    ("waiting for slower workers", "waiting_s"),
    ("exposed communication", "communication_s"),
    ("update", "update_s"),
    ("none of these", "unaccounted_s"),
)
"""Of a whole job, in their order: name and field of the summary's `stages`."""

CHANCE: Final = 0.05
"""A share that is known less well is not shown."""
STRAGGLER_SHARE: Final = 0.05
"""Of an iteration: workers that are all alike hold each other up by less."""

_SAME_BOUND: Final = 0.002
"""Relative: frames' headers, which one of them counts, make less."""
_NUM_AGES: Final = 6
"""Ages of gradients that are listed one by one."""


def among_text(num_shown: int, total: int, what: str) -> str:
    """`, the first 8 of 12 workers`, behind the title of a picture's axis; empty where all are shown."""
    return f", the first {num_shown} of {total} {what}" if num_shown < total else ""


def deviation(link: "LinkSummary") -> float | None:
    """Measured over expected bytes, less one; None where nothing can be compared."""
    return link.bytes / link.expected_bytes - 1 if link.expected_bytes else None


def deviation_text(share: float | None) -> str:
    """`+0.02 %`; a dash for None."""
    return DASH if share is None else f"{100 * share:+.2f} %".replace("-0.00", "+0.00")


def prediction_name(allreduce: "AllReduceSummary") -> str:
    """What the prediction rests on."""
    trunk = allreduce.bottleneck
    return "the cost model's prediction" if trunk is None else f"what the bytes of {trunk} need at its rate"


def costs_text(costs: "Costs") -> str:
    """What a prediction takes hosts to cost, and who says so."""
    by = "defaults; `testbed fit` measures" if costs.fitted_at is None else f"fitted {costs.fitted_at[:10]}"
    cores = "" if costs.num_cores is None else f" (all hosts share {costs.num_cores} cores)"
    channels = "".join(
        f"; {each.channel} {each.message_s * 1e6:.3g} us and {each.copy_s_per_byte * 1e9:.3g} ns"
        for each in costs.channels
    )
    return (
        f"hosts: {costs.host_latency_s * 1e6:.3g} us latency and {costs.message_s * 1e6:.3g} us of a processor per "
        f"message{cores}, {costs.copy_s_per_byte * 1e9:.3g} ns to send or receive a byte and "
        f"{costs.addition_s_per_byte * 1e9:.3g} ns to add it, {costs.late_s * 1e6:.3g} us more on a link with a delay, "
        f"{costs.shaper_late_s * 1e6:.3g} us where a shaper was waited for, "
        f"{100 * costs.link_share:.1f} % of what headers leave of a link{channels} ({by})"
    )


def reach_text(outside: Sequence[str], error: float | None, source: str | None, num_points: int) -> str:
    """How far a prediction may be trusted: the error that was found where it was compared with measurements, or why
    there is none to state."""
    beyond = f"outside what predictions were compared with: {'; '.join(outside)}"
    if error is None or source is None:
        defaults = "with defaults that nobody has compared with this machine (`testbed fit`)"
        return f"{defaults}, and {beyond}" if outside else defaults
    if outside:
        return f"{beyond}; no error is known there"
    return f"expect to be off by {percent_text(error)} on the mean ({source}, {num_points} points)"


def prediction_text(prediction: "PredictionSummary") -> tuple[str, str]:
    """The predicted iteration, and by how much it is off what was measured, with how far it reaches."""
    reach = reach_text(
        prediction.outside, prediction.expected_error, prediction.expected_error_source, prediction.num_points
    )
    if prediction.iteration_time_s is None:
        return DASH, f"not predicted: {prediction.missing}"
    error = prediction.iteration_error
    off = "" if error is None else f"{100 * error:+.1f} % off the measured mean; "
    return time_text(prediction.iteration_time_s), f"by the cost model, {off}{reach}"


def bounds_text(allreduce: "AllReduceSummary") -> str:
    """`1.030 x the bound of the task (537 ms), 1.420 x its schedule's (389 ms)`; once where they are the same."""
    task_s, schedule_s, took_s = allreduce.bound_s, allreduce.schedule_bound_s, allreduce.time_s
    same = abs(schedule_s / task_s - 1) < _SAME_BOUND
    if took_s is None:
        bound = f"the bound of the task is {time_text(task_s)}"
        of_schedule = "as its schedule's" if same else f"its schedule's {time_text(schedule_s)}"
        return f"withheld: {allreduce.missing}; {bound}, {of_schedule}"
    task = f"{took_s / task_s:.3f} x the bound of the task"
    if same:
        return f"{task} and of its schedule ({time_text(task_s)})"
    return f"{task} ({time_text(task_s)}), {took_s / schedule_s:.3f} x its schedule's ({time_text(schedule_s)})"


def predicted_exchange_text(allreduce: "AllReduceSummary") -> str:
    """What it was compared with, and by how much that is off where there is something to compare: `1.018 x the cost
    model's prediction (601 ms, -1.75 %)`."""
    name, predicted = prediction_name(allreduce), time_text(allreduce.predicted_s)
    if allreduce.time_s is None:
        return f"{name}: {predicted}"
    off = deviation_text(allreduce.predicted_s / allreduce.time_s - 1)
    return f"{allreduce.time_s / allreduce.predicted_s:.3f} x {name} ({predicted}, {off})"


def exchange_name(summary: "Summary") -> str:
    """What the time of exchanging is the time of."""
    return "All-reduce" if summary.in_step else "Push, pull"


def staleness_text(synchronisation: "SynchronisationSummary") -> str:
    """How old parameters were, and how often workers exchanged them."""
    ages = list(synchronisation.staleness.items())
    shown = ", ".join(f"{age}: {number}" for age, number in ages[:_NUM_AGES])
    more = f", up to {ages[-1][0]}" if len(ages) > _NUM_AGES else ""
    if synchronisation.every is None:
        return f"updates of others behind, mean; gradients by age: {shown}{more}"
    return (
        f"own steps since the last averaging, mean; parameters averaged {synchronisation.num_exchanges} times, every "
        f"{synchronisation.every} iterations; gradients by age: {shown}{more}"
    )


def compression_text(compression: "CompressionSummary") -> str:
    """What compression saved and what it cost."""
    sent = f"{size_text(compression.payload_bytes)} of {size_text(compression.gradient_bytes)} per worker"
    links = f"; the links carry {percent_text(compression.traffic_ratio)} of what they would without"
    codec = f"encoding {time_text(compression.encode_s)}, decoding {time_text(compression.decode_s)} of CPU time"
    return f"{compression.kind}: {sent}{links if compression.traffic_ratio is not None else ''}; {codec}"


def computing_text(summary: "Summary") -> str:
    """What of computing is real, and whether it kept its pace."""
    pace = summary.pace
    if pace is None:
        return summary.computing
    return (
        f"{summary.computing}; {pace.num_overrun} of {pace.num_iterations} iterations overran, gradients were at most "
        f"{time_text(pace.overrun_max_s)} late"
    )


def parts(numbers: "Summary | Mapping[str, Any]") -> list[tuple[str, float]]:
    """Name and virtual seconds of each part of an iteration, of a run or a sweep's point; they add up to its mean."""
    found = numbers if isinstance(numbers, Mapping) else numbers.__dict__
    return [(name, float(found[field] or 0.0)) for name, field, _, _ in PARTS]


def shares(numbers: "Summary | Mapping[str, Any]") -> list[float]:
    """Of an iteration, of each of `parts`: per cent, rounded to tenths so that they add up to 100 (largest
    remainders)."""
    times_s = [time_s for _, time_s in parts(numbers)]
    exact = [1000 * time_s / sum(times_s) for time_s in times_s]
    whole = [math.floor(each) for each in exact]
    missing = 1000 - sum(whole)
    for index in sorted(range(len(exact)), key=lambda each: whole[each] - exact[each])[:missing]:
        whole[index] += 1
    return [each / 10 for each in whole]


def factor(summary: "Summary") -> tuple[str, str, str] | None:
    """What the run says of the network's cost: its name, the number and the definition with the run's own numbers.
    The scaling factor where it is one, else network efficiency and why; None without iterations."""
    time_s = summary.iteration_time_s
    if time_s is None:
        return None
    if summary.scaling_factor is not None and summary.compute_alone_time_s is not None:
        text = DEFINITIONS["scaling"].format(num_workers=summary.num_workers).removesuffix(".")
        numbers = f"{time_text(summary.compute_alone_time_s)} / {time_text(time_s.mean)}"
        return "Scaling factor", f"{summary.scaling_factor:.3f}", f"{text}: {numbers}."
    if summary.network_efficiency is None or summary.compute_only_time_s is None:
        return None
    text = DEFINITIONS["efficiency"].format(num_workers=summary.num_workers).removesuffix(".")
    numbers = f"{time_text(summary.compute_only_time_s)} / {time_text(time_s.mean)}"
    why = f" No scaling factor: {summary.scaling_factor_missing}." if summary.scaling_factor_missing else ""
    return "Network efficiency", f"{summary.network_efficiency:.3f}", f"{text}: {numbers}.{why}"


def checked_text(checked: "Checks") -> str:
    """`bytes of 8 of 8 link directions, rates of 8 (2 measured themselves), delays of 8 checked`."""
    own = "" if checked.num_rates_own == checked.num_rates else f" ({checked.num_rates_own} measured themselves)"
    return (
        f"bytes of {checked.num_bytes} of {checked.num_directions} link directions, rates of {checked.num_rates}{own}, "
        f"delays of {checked.num_delays} checked"
    )


def measured_on(link: "LinkSummary") -> str:
    """Where the measured rate is from: empty where it is the link's own, of this run."""
    if link.rate_from_cache:
        return f"of its class, measured on {link.rate_measured_on} in an earlier run"
    own = f"{link.from_} -> {link.to}"
    return "" if link.rate_measured_on in (None, own) else f"of its class, measured on {link.rate_measured_on}"


def marked_rates(links: "Sequence[LinkSummary]") -> str:
    """What a `~` before a measured rate says of it: `measured on another of its class`; empty where no rate has one."""
    cached = {link.rate_from_cache for link in links if measured_on(link)}
    reasons = {False: "measured on another of its class", True: "measured before this run"}
    return " or ".join(text for is_cached, text in reasons.items() if is_cached in cached)


def machine_text(machine: "MachineSummary") -> tuple[str, str]:
    """The idle share of the cores, and what else they did."""
    parts = [f"of the cores' time was idle, {percent_text(machine.steal_share)} stolen by the hypervisor"]
    if machine.others_share is not None:
        parts.append(f"{percent_text(machine.others_share)} used by other programs")
    if machine.saturated_share is not None:
        parts.append(f"none was left during {100 * machine.saturated_share:.0f} % of communication")
    if machine.softnet_drops:
        parts.append(f"{machine.softnet_drops:,} packets dropped by the kernel's input queue")
    return percent_text(machine.idle_share), "; ".join(parts)


def shaping_accuracy(link: "LinkSummary") -> float | None:
    """Sent over rate x time while packets waited; None where there were too few probes to say it to 5 %."""
    backlog = link.backlog
    return None if backlog is None or backlog.chance > CHANCE else backlog.sent_bytes / backlog.due_bytes


def backlog_text(links: "Sequence[LinkSummary]") -> tuple[str, str] | None:
    """The same of all links together, and how many probes tell it."""
    probed = [link.backlog for link in links if link.backlog is not None]
    sent, due = sum(backlog.sent_bytes for backlog in probed), sum(backlog.due_bytes for backlog in probed)
    chance = math.sqrt(sum((backlog.chance * backlog.due_bytes) ** 2 for backlog in probed))
    if not probed or chance > CHANCE * due:
        return None
    num_probes = sum(backlog.num_probes for backlog in probed)
    return percent_text(sent / due), f"of rate x time was sent while packets waited ({num_probes} probes)"


def lateness_text(links: "Sequence[LinkSummary]") -> tuple[str, str] | None:
    """How much later than requested the delay lines let packets go, latest of all links; None where no daemon does."""
    lines = [link.delay_line for link in links if link.delay_line is not None]
    medians, tails, latest = (
        [late_s for line in lines if (late_s := getattr(line, name)) is not None]
        for name in ("late_median_s", "late_p99_s", "late_max_s")
    )
    if not medians:
        return None
    return (
        f"+{time_text(max(medians))}",
        f"later than requested, median of the worst link; p99 {time_text(max(tails))}, max. {time_text(max(latest))}",
    )


def marks_text(links: "Sequence[LinkSummary]") -> tuple[str, str] | None:
    """What ECN marked, on all links together; None where nothing was."""
    lines = [(link, link.delay_line) for link in links if link.delay_line is not None and link.delay_line.num_marked]
    if not lines:
        return None
    most, line = max(lines, key=lambda pair: pair[1].num_marked)
    return (
        f"{sum(line.num_marked for _, line in lines):,}",
        f"packets by ECN; most by {most.from_} → {most.to}: {line.num_marked:,} of {line.num_packets:,}",
    )


def straggler(summary: "Summary") -> "WorkerSummary | None":
    """The worker that held the others up most, if that cost any worth a line."""
    worst = max(summary.workers, key=lambda worker: worker.straggler_wait_s, default=None)
    if worst is None or summary.iteration_time_s is None:
        return None
    return worst if worst.straggler_wait_s > STRAGGLER_SHARE * summary.iteration_time_s.mean else None


def aggregator_text(aggregator: "AggregatorSummary") -> str:
    """What an aggregator did besides the chunks that it summed."""
    text = (
        f"chunks{_payload(aggregator)} at {aggregator.at} ({aggregator.dataplane}){_in_tree(aggregator)}; "
        f"{aggregator.duplicates:,} contributions came again, "
        f"{aggregator.stale:,} too late"
    )
    if aggregator.retransmitted is not None and aggregator.repeated is not None:
        text += (
            f"; measured iterations: {aggregator.retransmitted:,} sent again by workers, "
            f"{aggregator.repeated:,} done again for precision"
        )
    if aggregator.partial:
        text += f", {aggregator.partial:,} without a straggler"
    if aggregator.slot_latency is not None:
        text += f"; {slot_latency_text(aggregator.slot_latency)}"
    if aggregator.last is not None:
        text += f"; {wait_text(aggregator)}"
    text += "".join(f"; {tenant_text(tenant)}" for tenant in aggregator.tenants)
    return f"{text}; lost: {aggregator.lost}" if aggregator.lost else text


def slot_latency_text(latency: "SlotLatency") -> str:
    """`a slot's use took 1.22 ms or less for half of the chunks, 8.19 ms or less for 99 %`."""
    half, most = time_text(latency.median_s), time_text(latency.p99_s)
    return f"a slot's use took {half} or less for half of the chunks, {most} or less for 99 %"


def wait_text(aggregator: "AggregatorSummary") -> str:
    """`half of them waited less than 1.02 ms for their last part, 99 % less than 8.19 ms; 61 % for that of w3`."""
    if aggregator.wait_median_s is None or aggregator.wait_p99_s is None or aggregator.last is None:
        return DASH
    return (
        f"half of them waited less than {time_text(aggregator.wait_median_s)} for their last part, 99 % less than "
        f"{time_text(aggregator.wait_p99_s)}; {100 * aggregator.last_share:.0f} % for that of {aggregator.last}"
    )


def _payload(aggregator: "AggregatorSummary") -> str:
    return "" if aggregator.payload == "int32" else f" of {aggregator.payload}"


def tenant_text(tenant: "TenantSummary") -> str:
    """`for x0, x1 beside it 290 reductions of 256KiB in 32 aggregator slots`."""
    return (
        f"for {', '.join(tenant.workers)} beside it {tenant.reductions:,} reductions of "
        f"{format_size(tenant.size_bytes)} in {tenant.num_slots:,} aggregator slots"
    )


def _in_tree(aggregator: "AggregatorSummary") -> str:
    """` of w0, w1 for a0`; nothing where there is one for all."""
    above = f" for {aggregator.parent}" if aggregator.parent else ""
    in_tree = aggregator.parent or any(child.startswith("a") for child in aggregator.children)
    return f" of {', '.join(aggregator.children)}{above}" if in_tree else ""


def stages(found: "StagesSummary") -> list[tuple[str, float]]:
    """Name and virtual seconds of each stage of the job that there was; they add up to its whole."""
    named = ((name, getattr(found, field)) for name, field in STAGES)
    return [(name, time_s) for name, time_s in named if time_s]


def stages_text(found: "StagesSummary") -> str:
    """`from the launch to the end of 33 iterations: start 1.02 s, reading 2.1 s, ...`."""
    listed = ", ".join(f"{name} {time_text(time_s)}" for name, time_s in stages(found))
    return f"from the launch to the end of {found.num_iterations} iterations: {listed}"


def storage_text(found: "StorageSummary", reading_s: float | None) -> str:
    """What was read, how long that took, and what it needs at least."""
    parts = [found.requested]
    if found.start_bytes and reading_s is not None:
        least = f"the disk or the most loaded link needs {time_text(found.start_least_s)}"
        parts.append(f"{size_text(found.start_bytes)} in {time_text(reading_s)} ({least})")
    if found.batch_bytes and found.batch_read_s is not None:
        least = f"everybody's need {time_text(found.batch_least_s)}"
        parts.append(f"{size_text(found.batch_bytes)} per batch in {time_text(found.batch_read_s)} ({least})")
    return "; ".join(parts)


def background_text(flow: "BackgroundSummary") -> str:
    """What a background flow was configured to, and what became of it."""
    lost = 1 - flow.received_bps / flow.sent_bps if flow.sent_bps > flow.received_bps else 0.0
    text = f"arrived of {flow.from_} → {flow.to}, {flow.kind}: {flow.requested}"
    if lost > 0.001:  # what is under way at the end is no loss
        text += f"; {100 * lost:.1f} % dropped on its path or in flight"
    if flow.blocked_share > 0.001:
        text += f"; {100 * flow.blocked_share:.1f} % did not fit its own host's link"
    return text


def change_text(change: "ChangeSummary", *, short: bool = False) -> str:
    """`w1 → s0: rate 100mbit → 50mbit`; a trace's steps are counted."""
    by = {"schedule": "", "trace": ", by a trace", "manual": ", manually"}[change.source]
    if change.source == "trace":
        return f"{change.links}: {change.setting} from {change.before} through {change.num_steps} steps{by}"
    if change.setting == "carrier":
        return f"{change.links}: {change.after}{by}"
    return f"{change.links}: {change.setting} {change.after if short else f'{change.before} → {change.after}'}{by}"


def headline(summary: "Summary") -> str | None:
    """The answer to the experiment's question in one sentence: how much communication costs. None where it would be
    of numbers that do not stand."""
    if summary.command is not None:
        return _command_headline(summary, summary.command) if summary.stands else None
    if summary.iteration_time_s is None or summary.exposed_communication_s is None:
        return "No iteration was completed."
    if not summary.stands:
        return None
    share = summary.exposed_communication_s / summary.iteration_time_s.mean
    workers = f"{summary.num_workers} workers"
    text = f"{workers} spend {_whole_percent(share)} of every iteration on communication that computing does not hide"
    if summary.scaling_factor is not None:
        return (
            f"{text}: together they train at {_whole_percent(summary.scaling_factor)} of {summary.num_workers} times "
            "the speed of one alone."
        )
    if summary.network_efficiency is None:
        return f"{text}."
    if summary.network_efficiency >= 1:
        # Workers that wait for each other leave cores to those that compute, so a busy machine may gain by it.
        return (
            f"{text}, and train as fast as they would without a network: here the cores are the limit, not the links."
        )
    return (
        f"{text} and train at {_whole_percent(summary.network_efficiency)} of the speed they would have without a "
        "network, on these cores."
    )


def _whole_percent(share: float) -> str:
    """`94 %`; what is neither none nor all of it is not said to be."""
    number = round(100 * share)
    if number == 0 and share > 0:
        return "less than 1 %"
    return "more than 99 %" if number == 100 and share < 1 else f"{number} %"


def _command_headline(summary: "Summary", command: "CommandSummary") -> str:
    busiest = max(summary.links, key=lambda link: (link.utilization_mean or 0.0, link.bytes), default=None)
    if summary.num_workers == 1:
        who = "One worker ran the command"
    elif command.launcher:
        who = f"The command ran in w0 and had {summary.num_workers} hosts to start processes on,"
    else:
        who = f"{summary.num_workers} workers ran the command"
    text = f"{who} for {time_text(command.time_s)}"
    if busiest is None or not busiest.bytes:
        return f"{text}; nothing crossed a link."
    text = f"{text}; the busiest link, {busiest.from_} → {busiest.to}, carried {size_text(busiest.bytes)}"
    if busiest.utilization_mean is None:
        return f"{text}."
    return (
        f"{text}: {percent_text(busiest.utilization_mean)} of its rate, {percent_text(busiest.utilization_busy)} "
        "while any link was busy."
    )


def command_text(command: "CommandSummary") -> str:
    """The line, and what became of its backend."""
    line = shlex.join(command.argv)
    if command.backend is None:
        return line
    requested = " and ".join(command.redirected) or "none"
    return f"{line}; process groups of {requested} made by {command.backend}"


def prometheus_text(seen: "PrometheusSummary") -> str:
    """`12 scrapes of 148 series; its counters are the record's; alerts fired: LinkSaturated (8)`."""
    same = "not the record's" if seen.differences else "the record's"
    fired = ", ".join(f"{name} ({count})" for name, count in sorted(seen.alerts.items())) or "none"
    return f"{seen.num_scrapes:,} scrapes of {seen.num_series:,} series; its counters are {same}; alerts fired: {fired}"
