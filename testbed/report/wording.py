"""What results are called and how numbers are written for people: one wording for the terminal and the
report."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from transports.units import format_size

if TYPE_CHECKING:  # the record's module imports polars, which showing progress does not need
    from testbed.record.summary import (
        AggregatorSummary,
        AllReduceSummary,
        BackgroundSummary,
        ChangeSummary,
        CommandSummary,
        CompressionSummary,
        LinkSummary,
        MachineSummary,
        Outcome,
        PrometheusSummary,
        Summary,
        SynchronisationSummary,
        TenantSummary,
        WorkerSummary,
    )
    from transports.collectives.timing import Costs
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS
from testbed.record.number_text import DASH, percent_text, size_text, time_text

OUTCOMES: Final["Mapping[Outcome, str]"] = {
    "valid": "Bytes, rates and settings of every link hold, and the machine kept up.",
    "degraded": "The numbers stand, with reservations.",
    "invalid": "The emulation did not hold; do not draw conclusions from these numbers.",
    "failed": "The run did not complete.",
    "unsupported": "This machine cannot run the experiment.",
}
DEFINITIONS: Final[Mapping[str, str]] = {
    "iteration": "From the first worker's start to the last worker's end: median, 10th and 90th percentile.",
    "compute": "Forward, backward until the last gradient, optimizer: mean over workers, median iteration.",
    "exposed": "Communication that computing did not hide: last gradient computed to last reduced.",
    "other": "The rest: loading data, bookkeeping, waiting for the slowest worker.",
    "scaling": "The same {num_workers} workers computing without communicating, under the same contention "
    "for cores, over the measured iteration.",
    "utilization_mean": "What the link carried over what it could have carried in the measured iterations.",
    "utilization_busy": "The same while at least one bucket was in service.",
    "background": "What background flows took of the link in the measured iterations; it is in the utilisation and not "
    "in the bytes.",
    "bytes": "Counted by what shapes the link, with headers, pure acknowledgements taken out, next to what "
    "the collective's schedule sends; a dash where flows could have taken another of several equal paths, or where a "
    "compressor's payloads depend on the gradients.",
    "rate_held": "Sent over rate x time, in short times during which the queue surely held packets.",
    "late": "How much later than the delay asks packets were let go by the program that holds them: median, 99th "
    "percentile.",
    "held_up": "How much later than the last but one the last worker handed over its last gradient, over all measured "
    "iterations: the time for which everyone waited for this worker alone.",
    "allreduce": "Time in which at least one bucket was in service on the slowest worker, all buckets of one "
    "iteration together.",
    "bound": "Least time for these bytes at the goodput of the links of workers and parameter servers, or of a link "
    "that workers share and that must carry more.",
    "predicted": "Alpha-beta model: latency of every round, then bytes at the goodput of those links; or the "
    "time the most loaded link that workers share needs, if that is longer.",
}

CHANCE: Final = 0.05
"""A share that is known less well is not shown."""
STRAGGLER_SHARE: Final = 0.05
"""Of an iteration: workers that are all alike hold each other up by less."""

_NUM_AGES: Final = 6
"""Ages of gradients that are told one by one."""


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
    return (
        f"hosts: {costs.host_latency_s * 1e6:.3g} us latency and {costs.message_s * 1e6:.3g} us of a processor per "
        f"message, {costs.addition_s_per_byte * 1e9:.3g} ns to add a byte, {100 * costs.link_share:.1f} % of what "
        f"headers leave of a link ({by})"
    )


def exchange_name(summary: "Summary") -> str:
    """What the time of exchanging is the time of."""
    found = summary.synchronisation
    return "All-reduce" if found is None or SYNCHRONISATIONS[found.kind].in_step else "Push, pull"


def staleness_text(synchronisation: "SynchronisationSummary") -> str:
    """How old parameters were, and how often workers told each other."""
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
    """What it saved and what it cost."""
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


def scaling_definition(summary: "Summary") -> str:
    """The definition with the run's own numbers."""
    text = DEFINITIONS["scaling"].format(num_workers=summary.num_workers)
    if summary.iteration_time_s is None or summary.compute_only_time_s is None:
        return text
    median = time_text(summary.iteration_time_s.median)
    return f"{text.removesuffix('.')}: {time_text(summary.compute_only_time_s)} / {median}."


def machine_text(machine: "MachineSummary") -> tuple[str, str]:
    """The idle share of the cores, and what else they did."""
    parts = [f"of the cores' time was idle, {percent_text(machine.steal_share)} stolen by the hypervisor"]
    if machine.saturated_share is not None:
        parts.append(f"none was left during {100 * machine.saturated_share:.0f} % of communication")
    if machine.softnet_drops:
        parts.append(f"{machine.softnet_drops:,} packets dropped by the kernel's input queue")
    return percent_text(machine.idle_share), "; ".join(parts)


def rate_held(link: "LinkSummary") -> float | None:
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
    """How much later than asked the delay lines let packets go, the latest of all links; None where no daemon does."""
    lines = [link.delay_line for link in links if link.delay_line is not None]
    medians, tails, latest = (
        [late_s for line in lines if (late_s := getattr(line, name)) is not None]
        for name in ("late_median_s", "late_p99_s", "late_max_s")
    )
    if not medians:
        return None
    return (
        f"+{time_text(max(medians))}",
        f"later than asked, median of the worst link; p99 {time_text(max(tails))}, at most {time_text(max(latest))}",
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
    worst = max(summary.workers, key=lambda worker: worker.held_up_s, default=None)
    if worst is None or summary.iteration_time_s is None:
        return None
    return worst if worst.held_up_s > STRAGGLER_SHARE * summary.iteration_time_s.median else None


def aggregator_text(aggregator: "AggregatorSummary") -> str:
    """What it did beside the chunks that it added."""
    text = (
        f"chunks{_payload(aggregator)} at {aggregator.at} ({aggregator.dataplane}){_in_tree(aggregator)}; "
        f"{aggregator.duplicates:,} contributions came again, "
        f"{aggregator.stale:,} too late; measured iterations: {aggregator.retransmitted:,} sent again by workers, "
        f"{aggregator.repeated:,} done again for precision"
    )
    if aggregator.partial:
        text += f", {aggregator.partial:,} without a straggler"
    if aggregator.last is not None:
        text += f"; {wait_text(aggregator)}"
    text += "".join(f"; {tenant_text(tenant)}" for tenant in aggregator.tenants)
    return f"{text}; lost: {aggregator.lost}" if aggregator.lost else text


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
    """`for x0, x1 beside it 290 reductions of 256KiB in 32 slots`."""
    return (
        f"for {', '.join(tenant.workers)} beside it {tenant.reductions:,} reductions of "
        f"{format_size(tenant.size_bytes)} in {tenant.num_slots:,} slots"
    )


def _in_tree(aggregator: "AggregatorSummary") -> str:
    """` of w0, w1 for a0`; nothing where there is one for all."""
    above = f" for {aggregator.parent}" if aggregator.parent else ""
    in_tree = aggregator.parent or any(child.startswith("a") for child in aggregator.children)
    return f" of {', '.join(aggregator.children)}{above}" if in_tree else ""


def background_text(flow: "BackgroundSummary") -> str:
    """What was asked, and what became of it."""
    lost = 1 - flow.received_bps / flow.sent_bps if flow.sent_bps > flow.received_bps else 0.0
    text = f"arrived of {flow.from_} → {flow.to}, {flow.kind}: {flow.asked}"
    if lost > 0.001:  # what is under way at the end is no loss
        text += f"; {100 * lost:.1f} % dropped along its way or under way"
    if flow.blocked_share > 0.001:
        text += f"; {100 * flow.blocked_share:.1f} % did not fit its own host's link"
    return text


def change_text(change: "ChangeSummary", *, short: bool = False) -> str:
    """`w1 → s0: rate 100mbit → 50mbit`; a trace's steps are counted."""
    by = {"schedule": "", "trace": ", by a trace", "hand": ", by hand"}[change.source]
    if change.source == "trace":
        return f"{change.links}: {change.setting} from {change.before} through {change.num_steps} steps{by}"
    if change.setting == "carrier":
        return f"{change.links}: {change.after}{by}"
    return f"{change.links}: {change.setting} {change.after if short else f'{change.before} → {change.after}'}{by}"


def headline(summary: "Summary") -> str:
    """The answer to the laboratory's question in one sentence."""
    if summary.command is not None:
        return _command_headline(summary, summary.command)
    if summary.iteration_time_s is None or summary.exposed_communication_s is None:
        return "No iteration was completed."
    share = summary.exposed_communication_s / summary.iteration_time_s.median
    workers = f"{summary.num_workers} workers"
    text = f"{workers} spend {100 * share:.0f} % of every iteration on communication that computing does not hide"
    if summary.scaling_factor is None:
        return f"{text}."
    if summary.scaling_factor >= 1:
        # Workers that wait for each other leave cores to those that compute, so a busy machine may gain by it.
        return (
            f"{text}, and train as fast as they would without a network: here the cores are the limit, not the links."
        )
    return f"{text} and train at {100 * summary.scaling_factor:.0f} % of the speed they would have without a network."


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
    asked = " and ".join(command.redirected) or "none"
    return f"{line}; process groups of {asked} made by {command.backend}"


def prometheus_text(seen: "PrometheusSummary") -> str:
    """`12 scrapes of 148 series; its counters are the record's; alerts fired: LinkSaturated (8)`."""
    same = "not the record's" if seen.differences else "the record's"
    fired = ", ".join(f"{name} ({count})" for name, count in sorted(seen.alerts.items())) or "none"
    return f"{seen.num_scrapes:,} scrapes of {seen.num_series:,} series; its counters are {same}; alerts fired: {fired}"
