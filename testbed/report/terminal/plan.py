"""A plan as a person reads it."""

from typing import Final

from rich.console import Console
from rich.table import Table

from testbed.experiment.changes import described
from testbed.experiment.link import GilbertElliott, LinkSpec
from testbed.experiment.storage.base import STORAGE_NODE
from testbed.plan.direction import Direction
from testbed.plan.machines import Spread
from testbed.plan.plan import Plan
from testbed.plan.storage import StoragePlan
from testbed.report.terminal.notes import render_notes
from testbed.report.terminal.setup import setup_text, value_text
from testbed.report.wording import costs_text
from transports.compression.base import Pattern
from transports.units import format_rate, format_size, format_time

_PATTERNS: Final[dict[Pattern, str]] = {
    "reduce": "payloads are added up on the way",
    "gather": "every worker gathers all payloads",
    "two_phase": "in two phases, each worker averages a shard and codes its mean again",
}


def render_plan(plan: Plan, console: Console) -> None:
    """Nodes, addresses, links, commands, processes, predictions."""
    experiment, prediction = plan.experiment, plan.prediction
    console.print(f"[bold]{experiment.name}[/]  spec {experiment.sha256()[:12]}", highlight=False)
    console.print(f"{experiment.workers} workers · {setup_text(experiment)}", highlight=False, markup=False)
    console.print(
        f"placement {value_text(experiment.placement)} · TCP {plan.congestion}"
        f"{f' · delay by {plan.delay_backend}' if plan.delay_backend else ''}",
        highlight=False,
        markup=False,
    )
    render_notes(experiment.topology.assumptions(), console)
    if plan.dilation_text:
        console.print(
            f"{plan.dilation_text}; here all is virtual but for the commands", highlight=False, soft_wrap=True
        )
        render_notes(plan.warnings, console)
    table = Table(title="links, per direction", title_justify="left", box=None, pad_edge=False)
    for column, justify in (
        ("from", "left"),
        ("address", "left"),
        ("to", "left"),
        ("rate", "right"),
        ("delay", "right"),
        ("queue", "right"),
        ("also", "left"),
        ("expected bytes / iteration", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for direction in plan.directions:
        table.add_row(
            direction.sender.interface,
            direction.sender.address,
            direction.receiver.interface,
            "unshaped" if direction.requested.unshaped else format_rate(direction.rate_bps),
            format_time(direction.delay_s),
            format_size(direction.requested.queue_bytes),
            _also(direction.requested),
            _expected(direction),
        )
    console.print(table)
    if experiment.compression.data_dependent:
        estimate = f"~: what {experiment.compression.kind} sends depends on the gradients; an estimate"
        console.print(estimate, highlight=False)
    elif any(aggregator.tenants for aggregator in plan.aggregators):
        console.print("~: other jobs of the switch put bytes there, and nobody knows how many", highlight=False)
    elif any(direction.expected_bytes is None for direction in plan.directions):
        console.print("~: flows choose among equal paths by a hash; this many if they spread evenly", highlight=False)
    console.print("\n[bold]paths[/], of the workers that send to each other")
    for pair in plan.traffic:
        console.print(f"  {plan.paths[pair].text}", highlight=False, markup=False, soft_wrap=True)
    if experiment.changes:
        console.print("\n[bold]changes[/] of links, from the first iteration that communicates")
        for change in experiment.changes:
            console.print(f"  {described(change)}", highlight=False, markup=False, soft_wrap=True)
    if plan.spread is not None:
        _render_spread(plan.spread, console)
    console.print("\n[bold]commands[/], in each node's namespace")
    for node in plan.nodes:
        console.print(f"[cyan]{node.name}[/] ({node.role})")
        lines = [f"sysctl -w {key}={value}" for key, value in node.sysctls.items()]
        lines += [f"sysctl -w {key}={value}  (where it exists)" for key, value in node.sysctls_if_known.items()]
        lines += [f"ip {line}" for line in node.ip_commands] + [f"bridge {line}" for line in node.bridge_commands]
        lines += [f"tc {line}" for line in node.tc_commands]
        lines += [f"tc {line}  (where it is known)" for line in node.tc_commands_if_known]
        lines += [f"iptables -t mangle {line}" for line in node.firewall_rules]
        for line in lines:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print("\n[bold]processes[/]")
    console.print(f"  {experiment.runtime.text()}", highlight=False, markup=False, soft_wrap=True)
    if experiment.metrics.prometheus is not None:
        port = experiment.metrics.prometheus.port or "any free port"
        console.print(f"  root: prometheus (scrapes every second; its pages at 127.0.0.1, {port})", highlight=False)
    for node in plan.nodes:
        if node.daemon_arguments:
            console.print(f"  {node.name}: delay daemon ({' '.join(node.daemon_arguments)})", highlight=False)
    quotas = plan.quotas
    for rank in range(experiment.workers):
        held = f", held to {quotas[name]:.3g} cores" if (name := f"w{rank}") in quotas else ""
        console.print(f"  {name}: {experiment.workload.kind} worker, rank {rank}{held}", highlight=False)
    for name in plan.participants[experiment.workers :]:
        console.print(f"  {name}: parameter server", highlight=False)
    if plan.storage is not None:
        console.print(f"  {STORAGE_NODE}: storage node", highlight=False)
    for aggregator in plan.aggregators:
        console.print(f"  {aggregator.name}: {aggregator.text}", highlight=False)
        for tenant in aggregator.tenants:
            console.print(f"  {aggregator.name}: also {tenant.text}", highlight=False)
    for flow in plan.background:
        console.print(f"  {flow.target.node}: sink of {flow.title}", highlight=False)
        console.print(f"  {flow.source.node}: source of {flow.title}", highlight=False)
    if plan.hosts:
        console.print("\n[bold]hosts[/], limits and stragglers")
        for worker, requested in plan.hosts.items():
            console.print(f"  {worker}: {requested.text}", highlight=False, markup=False)
    if plan.storage is not None:
        _render_storage(plan.storage, console)
    if plan.background:
        console.print("\n[bold]background[/], beside the training; predictions below are without it")
        for flow in plan.background:
            text = f"  {flow.path.text}: {flow.requested.kind}, {flow.requested.text()}{flow.requested.when}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    sizes = ", ".join(format_size(4 * count) for count in plan.buckets)
    model = "the cost model"
    if prediction.bottleneck:
        model = f"the bytes of {prediction.bottleneck}, the most loaded link that workers share"
    if any(chosen != plan.collective for chosen in plan.chosen):
        sizes_bytes = [each.num_elements * each.element_bytes for each in plan.all_reduces]
        picked = ", ".join(
            f"{chosen.kind} for {format_size(size_bytes)}"
            for size_bytes, chosen in dict(zip(sizes_bytes, plan.chosen, strict=True)).items()
        )
        console.print(f"\n[bold]{plan.collective.kind}[/] picks {picked}", highlight=False)
    every = experiment.synchronisation.interval
    often = f"averaging of parameters, every {every} iterations" if every else "iteration"
    exchange = "all-reduce" if experiment.synchronisation.in_step else "push and pull"
    console.print(f"\n[bold]prediction[/], per {often}", highlight=False)
    console.print(
        f"  gradient {prediction.gradient_bytes:,} bytes in {len(plan.buckets)} buckets ({sizes})",
        highlight=False,
    )
    if experiment.compression.compresses:
        about = "about " if experiment.compression.data_dependent else ""
        share = f"{100 * prediction.payload_bytes / prediction.gradient_bytes:.2f} %"
        carried = f"{100 * plan.sent_bytes / plan.uncompressed_bytes:.2f} %"
        console.print(
            f"  {experiment.compression.kind}: {about}{prediction.payload_bytes:,} bytes of it per worker ({share}) in "
            f"{len(plan.exchanges)} operations; the links carry {about}{carried} of what they would without; the "
            "codec's time is not in the prediction",
            highlight=False,
        )
        went: dict[str, list[str]] = {_PATTERNS[pattern]: [] for pattern in plan.patterns}
        for count, pattern in dict(zip(plan.buckets, plan.patterns, strict=True)).items():
            went[_PATTERNS[pattern]].append(format_size(4 * count))
        for text, which in went.items():
            console.print(f"  {experiment.compression.kind}: {text} ({', '.join(which)})", highlight=False)
    console.print(
        f"  {exchange} at least {prediction.bound_s * 1e3:.1f} ms (bound of the task), "
        f"{prediction.schedule_bound_s * 1e3:.1f} ms (of the schedule), "
        f"{prediction.predicted_s * 1e3:.1f} ms by {model}, "
        f"at {prediction.goodput_bps / 1e6:.1f} Mbit/s of goodput",
        highlight=False,
    )
    console.print(f"  {costs_text(plan.costs)}", highlight=False, style="dim", soft_wrap=True)
    if experiment.synchronisation.advice is not None:
        console.print(f"  {experiment.synchronisation.advice.format(workers=experiment.workers)}", highlight=False)


def _render_spread(spread: Spread, console: Console) -> None:
    console.print("\n[bold]machines[/], and what the network between them must carry")
    for machine in spread.machines:
        where = machine.namespace or "found by Ray"
        text = f"  {machine.name} ({machine.address}, {where}): {', '.join(machine.nodes)}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    between = ", ".join(f"{tunnel.first.node}-{tunnel.second.node}" for tunnel in spread.tunnels)
    console.print(f"  between them by VXLAN: {between}", highlight=False, markup=False, soft_wrap=True)
    for need in spread.needs:
        console.print(
            f"  {need.source} to {need.target}: {format_rate(need.rate_bps)} of {need.num_links} links, "
            f"{need.wire_bps / 1e6:.4g} Mbit/s with what VXLAN adds, in packets of {need.packet_bytes} bytes",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _render_storage(storage: StoragePlan, console: Console) -> None:
    console.print("\n[bold]storage[/], over links that are shaped and counted as all others")
    console.print(f"  {storage.text}", highlight=False, markup=False, soft_wrap=True)
    if storage.reads_at_start:
        total = format_size(sum(storage.start.payload_bytes))
        console.print(f"  {total} to read, for at least {storage.start.least_s:.4g} s", highlight=False)
    if any(storage.batch.payload_bytes):
        size, least_ms = format_size(storage.batch.payload_bytes[0]), 1e3 * storage.batch.least_s
        console.print(f"  {size} for each worker's batch; everybody's take at least {least_ms:.4g} ms", highlight=False)


def _expected(direction: Direction) -> str:
    if direction.expected_bytes is None or direction.input_bytes is None:
        return f"~{direction.balanced_bytes:,.0f}"
    return f"{direction.expected_bytes + direction.input_bytes:,}"


def _also(requested: LinkSpec) -> str:
    """What else a direction is configured to, in few words."""
    found = []
    if requested.jitter_s > 0:
        found.append(f"jitter {format_time(requested.jitter_s)} {requested.jitter.distribution}")
    if isinstance(requested.loss, GilbertElliott):
        found.append(f"loss {requested.loss.mean_loss:.3g} in bursts of {requested.loss.mean_burst_packets:.3g}")
    elif requested.loss > 0:
        found.append(f"loss {requested.loss:g}")
    for what, share in (("duplicate", requested.duplicate), ("reorder", requested.reorder)):
        found += [f"{what} {share:g}"] if share > 0 else []
    found += [f"mark {format_size(requested.ecn_bytes)}"] if requested.ecn_bytes is not None else []
    found += ["best effort"] if requested.best_effort else []
    return ", ".join(found)
