"""Advice and traces as a person reads them."""

from dataclasses import asdict
from math import isinf
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from testbed.record.number_text import digits, percent_text, rate_text, size_text, time_text
from testbed.theory.advise import TOLERANCE, Advice, Change, Setting, Verification
from testbed.traces.table import LayerTable

REACH: Final = (
    "Predicted, not measured: what is ready is exchanged, one bucket after the other behind backward, at the stated "
    "share of the links, and the delays of a ring's steps are added up. Costs per message, of codecs, of stragglers "
    "and of losses are not counted."
)
_NUM_ROWS: Final = 12
"""Layers that are shown one by one; of more, the largest."""
_PICTURE_COLUMNS: Final = 72
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


def price(change: Change, today: Setting) -> str:
    """What a change takes, in its own unit."""
    setting = change.setting
    match change.name:
        case "fusion":
            return f"fusion: {fusion_text(setting)}, not {fusion_text(today)}"
        case "transport":
            filled, instead = percent_text(setting.efficiency), percent_text(today.efficiency)
            return f"a transport that fills {filled} of a link, not {instead}"
        case "aggregation":
            return f"a switch that aggregates, {setting.num_slots} slots"
        case "links":
            return f"links of {rate_text(setting.rate_bps)}"
        case "compression":
            return f"compression {digits(setting.compression_ratio)} x, and its codec"
        case "batch":
            return f"batches {digits(setting.batch_factor)} x as large"
        case "interval":
            return f"averaging every {setting.interval} iterations (local SGD)"


def fusion_text(setting: Setting) -> str:
    """`what is ready every 5 ms`."""
    cycle_s = setting.fusion.cycle_s
    if isinf(cycle_s):
        return f"buckets of {size_text(setting.fusion.buffer_bytes)}"
    return "every gradient by itself" if cycle_s == 0 else f"what is ready every {time_text(cycle_s)}"


def headline(advice: Advice) -> list[str]:
    """The answer in a sentence or two."""
    today, target = advice.today, percent_text(advice.target)
    rate = rate_text(today.rate_bps)
    now = f"{today.num_workers} workers on {rate} links scale to {percent_text(today.scaling_factor)}"
    if advice.sufficient:
        least = advice.least_rate_bps
        spare = "" if least is None else f" {rate_text(least)} would do."
        return [f"Enough: {now}, of {target} that are requested.{spare}"]
    if (chosen := advice.recommended) is not None:
        reached = percent_text(chosen.setting.scaling_factor)
        return [f"Not enough: {now}, not to {target}.", f"Least to change: {price(chosen, today)}; then {reached}."]
    best = advice.best
    most = "" if best is None else f" The most is {percent_text(best.setting.scaling_factor)}: {price(best, today)}."
    return [f"Not enough: {now}, not to {target}, and no single change is enough.{most}"]


def render_advice(advice: Advice, trace: str, console: Console) -> None:
    """The answer, and each change with its price."""
    for sentence in headline(advice):
        console.print(sentence, style="bold", highlight=False)
    today = advice.today
    table = today.table
    console.print(
        f"\n{trace}: {time_text(today.compute_s)} of computing an iteration, "
        f"{size_text(table.size_bytes)} of gradients; ring, {percent_text(today.efficiency)} of the links' rate "
        f"filled, {time_text(today.latency_s)} one way, fusion: {fusion_text(today)}\n",
        highlight=False,
    )
    rows = Table(box=None, pad_edge=False)
    rows.add_column("one change")
    rows.add_column("scaling factor", justify="right")
    rows.add_column("iteration", justify="right")
    rows.add_column("")
    rows.add_row("as it is", percent_text(today.scaling_factor), time_text(today.iteration_s), "")
    for change in advice.changes:
        enough = "enough" if change.sufficient else "not enough"
        mark = "[green]enough[/]" if change.sufficient else f"[dim]{enough}[/]"
        setting = change.setting
        rows.add_row(price(change, today), percent_text(setting.scaling_factor), time_text(setting.iteration_s), mark)
    console.print(rows)
    console.print(f"\n{REACH}", style="dim", highlight=False)


def render_verification(verified: Verification, console: Console) -> None:
    """What was emulated, beside what was promised."""
    if verified.measured is None or (error := verified.error) is None:
        console.print(f"Not verified: {verified.missing or 'the run has no scaling factor'}", highlight=False)
    else:
        points = f"{abs(100 * error):.1f} points {'less' if error > 0 else 'more'} than predicted"
        near = f"is within {100 * TOLERANCE:g} points of" if verified.reached else "misses"
        met = "meets" if verified.measured >= verified.target else near
        slower = f", time {verified.dilation:g} times slower" if verified.dilation > 1 else ""
        console.print(
            f"Measured in emulation ({verified.outcome}{slower}): {percent_text(verified.measured)}, {points}; "
            f"{met} {percent_text(verified.target)}.",
            style="bold",
            highlight=False,
        )
    for reason in verified.reasons:
        console.print(f"  {reason}", style="dim", highlight=False)
    if verified.record is not None:
        console.print(f"  record: {verified.record}", style="dim", highlight=False)


def advice_json(advice: Advice, trace: str, verified: Verification | None = None) -> dict[str, Any]:
    """The advice as plain data, for scripts. Every number is predicted but those of `verified`."""
    recommended = advice.recommended
    return {
        "kind": "predicted",
        "trace": trace,
        "target": advice.target,
        "sufficient": advice.sufficient,
        "least_rate_bps": advice.least_rate_bps,
        "today": _setting_json(advice.today),
        "recommended": None if recommended is None else recommended.name,
        "changes": [
            {
                "change": change.name,
                "price": price(change, advice.today),
                "sufficient": change.sufficient,
                **_setting_json(change.setting),
            }
            for change in advice.changes
        ],
        "verified": None
        if verified is None
        else {**asdict(verified), "error": verified.error, "reached": verified.reached, "tolerance": TOLERANCE},
    }


def _setting_json(setting: Setting) -> dict[str, Any]:
    cycle_s = setting.fusion.cycle_s
    return {
        "num_workers": setting.num_workers,
        "rate_bps": setting.rate_bps,
        "latency_s": setting.latency_s,
        "efficiency": setting.efficiency,
        "fusion_cycle_s": None if isinf(cycle_s) else cycle_s,
        "aggregated": setting.aggregated,
        "compression_ratio": setting.compression_ratio,
        "batch_factor": setting.batch_factor,
        "synchronisation_interval": setting.interval,
        "scaling_factor": setting.scaling_factor,
        "iteration_time_s": setting.iteration_s,
    }


def render_trace(table: LayerTable, trace: str, source: str, console: Console) -> None:
    """Totals, and the layers, or the largest of them."""
    gradients = table.gradients()
    console.print(f"[bold]{trace}[/]  {source}", highlight=False)
    console.print(
        f"forward {time_text(table.forward_s)} · backward {time_text(table.backward_s)} · update "
        f"{time_text(table.update_s)} · {size_text(table.size_bytes)} of gradients in {len(gradients)} parts\n",
        highlight=False,
    )
    for line in picture(table):
        console.print(line, highlight=False)
    numbered = list(enumerate(table.layers))
    if len(numbered) > _NUM_ROWS:
        largest = sorted(numbered, key=lambda pair: pair[1].size_bytes, reverse=True)[:_NUM_ROWS]
        console.print(f"the {_NUM_ROWS} of {len(numbered)} layers with the largest gradients", style="dim")
        numbered = sorted(largest)
    rows = Table(box=None, pad_edge=False)
    recorded = any(layer.communication_s is not None for layer in table.layers)
    for column in ("", "layer", "forward", "backward", "gradients", "", *(["exchanged in"] if recorded else [])):
        rows.add_column(column, justify="left" if column in ("layer", "") else "right")
    most = max(layer.size_bytes for layer in table.layers)
    for number, layer in numbered:
        rows.add_row(
            str(number),
            layer.name,
            time_text(layer.forward_s),
            time_text(layer.backward_s),
            size_text(layer.size_bytes),
            "█" * max(1, round(20 * layer.size_bytes / most)) if layer.size_bytes else "",
            *([time_text(layer.communication_s)] if recorded else []),
        )
    console.print(rows)


def picture(table: LayerTable) -> list[str]:
    """Computing as a line of time, and above it how many bytes of gradients become ready in each part of it; nothing
    where it takes no time."""
    whole_s = table.forward_s + table.backward_s
    if whole_s <= 0:
        return []
    ready_bytes = [0] * _PICTURE_COLUMNS
    for gradient in table.gradients():
        column = int((table.forward_s + gradient.ready_s) / whole_s * _PICTURE_COLUMNS)
        ready_bytes[min(column, _PICTURE_COLUMNS - 1)] += gradient.size_bytes
    most = max(ready_bytes)
    num_forward = round(table.forward_s / whole_s * _PICTURE_COLUMNS)
    legend = (
        f"─ forward {time_text(table.forward_s)}  ━ backward {time_text(table.backward_s)}  █ up to {size_text(most)} "
        f"of gradients ready within {time_text(whole_s / _PICTURE_COLUMNS)}\n"
    )
    return [
        "".join(_LEVELS[-(-size_bytes * (len(_LEVELS) - 1) // most)] for size_bytes in ready_bytes),
        "─" * num_forward + "━" * (_PICTURE_COLUMNS - num_forward),
        legend,
    ]


def trace_json(table: LayerTable, trace: str, source: str) -> dict[str, Any]:
    """A trace as plain data, for scripts."""
    return {
        "trace": trace,
        "source": source,
        "forward_s": table.forward_s,
        "backward_s": table.backward_s,
        "update_s": table.update_s,
        "input_s": table.input_s,
        "host_to_device_s": table.host_to_device_s,
        "size_bytes": table.size_bytes,
        "layers": [layer._asdict() for layer in table.layers],
    }
