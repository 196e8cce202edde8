"""Advice and traces as a person reads them."""

from collections.abc import Callable
from dataclasses import asdict, replace
from math import ceil, isinf
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.record.number_text import (
    decimals_apart,
    digits,
    percent_text,
    rate_text,
    rounded_up,
    size_text,
    time_text,
)
from testbed.theory.advise import TOLERANCE, Advice, Change, Setting, Verification
from testbed.theory.compressors import link_ratios
from testbed.traces.table import LayerTable

REACH: Final = (
    "Predicted, not measured: what is ready is exchanged, one bucket after the other behind backward, at the stated "
    "share of the links, and delays count where a collective's schedule does not hide them. Costs per message, of "
    "codecs, of stragglers and of losses are not counted, nor windows that are too small."
)
NOT_COUNTED: Final = ("costs per message", "codecs", "stragglers", "losses", "windows")
"""What no advice counts."""
_NO_FORWARD: Final = (
    "The trace has no forward pass, so an iteration is counted too short, and less than this may do: say how long a "
    "whole one takes (--iteration)."
)
_MOST_DIGITS: Final = 7
_NUM_ROWS: Final = 12
"""Layers that are shown one by one; of more, the largest."""
_PICTURE_COLUMNS: Final = 72
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


def price(change: Change, today: Setting) -> str:
    """What a change takes, in its own unit, rounded up: as much as is printed is enough."""
    setting = change.setting
    match change.name:
        case "fusion":
            return f"fusion: {fusion_text(setting)}, not {fusion_text(today)}"
        case "collective":
            return f"{setting.collective}, not {today.collective}"
        case "transport":
            least = ceil(1000 * setting.efficiency - 1e-9) / 1000 if change.sufficient else setting.efficiency
            filled, instead = percent_text(least), percent_text(today.efficiency)
            return f"a transport that fills {filled} of a link, not {instead}"
        case "aggregation":
            return f"a switch that aggregates, {setting.num_slots} slots"
        case "links":
            return f"links of {rate_text(setting.rate_bps)}"
        case "compression":
            num_digits = _enough_digits(
                setting.compression_ratio, lambda ratio: replace(setting, compression_ratio=ratio)
            )
            ratio, gathered = (
                digits(rounded_up(each, num_digits), num_digits)
                for each in (setting.compression_ratio, setting.gathered_ratio)
            )
            return (
                f"compression {ratio} x of the bytes on the links (payloads that are gathered: {gathered} x), and its "
                "codec"
            )
        case "batch":
            num_digits = _enough_digits(setting.batch_factor, lambda factor: replace(setting, batch_factor=factor))
            factor = digits(rounded_up(setting.batch_factor, num_digits), num_digits)
            return f"batches {factor} x as large, computed in proportion"
        case "interval":
            return f"averaging every {setting.interval} iterations (local SGD)"


def _enough_digits(least: float, at: Callable[[float], Setting]) -> int:
    """The fewest, three or more, to which what is rounded up scales no worse: with a little more than the least,
    gradients may fall into other cycles."""
    for num_digits in range(3, _MOST_DIGITS):
        if at(rounded_up(least, num_digits)).scaling_factor >= at(least).scaling_factor:
            return num_digits
    return _MOST_DIGITS


def share_decimals(advice: Advice) -> int:
    """Of all scaling factors beside the target: `not to 95.0 %` does not follow `95.0 %`."""
    shown = (advice.today, *(change.setting for change in advice.changes))
    return decimals_apart(advice.target, (setting.scaling_factor for setting in shown))


def compressors(advice: Advice) -> dict[str, float]:
    """Shipped compressors that leave as few bytes on the links as the advised compression, and how many times fewer;
    none where it is not enough, or a switch aggregates."""
    needed = [each.setting for each in advice.changes if each.name == "compression" and each.sufficient]
    if not needed or needed[0].aggregated:
        return {}
    ratios = link_ratios(needed[0].table, needed[0].num_workers)
    return {kind: ratio for kind, ratio in ratios.items() if ratio >= needed[0].compression_ratio}


def compressors_text(advice: Advice) -> str:
    """Their names in a sentence; empty where there are none."""
    if not (found := compressors(advice)):
        return ""
    named = ", ".join(f"{kind} {digits(ratio)} x" for kind, ratio in found.items())
    return f"So much compression on the links, as options are by default, what they lose not judged: {named}."


def fusion_text(setting: Setting) -> str:
    """`what is ready every 5 ms`."""
    cycle_s = setting.fusion.cycle_s
    if isinf(cycle_s):
        return f"buckets of {size_text(setting.fusion.buffer_bytes)}"
    return "every gradient by itself" if cycle_s == 0 else f"what is ready every {time_text(cycle_s)}"


def headline(advice: Advice) -> list[str]:
    """The answer in a sentence or two."""
    today, decimals = advice.today, share_decimals(advice)
    target = percent_text(advice.target, decimals)
    rate = rate_text(today.rate_bps)
    now = f"{today.num_workers} workers on {rate} links scale to {percent_text(today.scaling_factor, decimals)}"
    if advice.sufficient:
        least = advice.least_rate_bps
        spare = "" if least is None else f" {rate_text(rounded_up(least, 4))} would do."
        return [f"Enough: {now}, of {target} that are requested.{spare}"]
    # What is enough without a forward pass is enough with one, which waits for nothing.
    incomplete = [] if today.table.forward_s else [_NO_FORWARD]
    if (chosen := advice.recommended) is not None:
        reached = percent_text(chosen.setting.scaling_factor, decimals)
        answer = [f"Not enough: {now}, not to {target}.", f"Least to change: {price(chosen, today)}; then {reached}."]
        return [*answer, *incomplete]
    best = advice.best
    most = ""
    if best is not None:
        most = f" The most is {percent_text(best.setting.scaling_factor, decimals)}: {price(best, today)}."
    return [f"Not enough: {now}, not to {target}, and no single change is enough.{most}", *incomplete]


def not_in_trace(table: LayerTable) -> list[str]:
    """The parts of an iteration that a trace gives no time, so that they are not counted."""
    parts = {"the forward pass": table.forward_s, "the optimizer's step": table.update_s}
    return [name for name, part_s in parts.items() if not part_s]


def computing_text(setting: Setting) -> str:
    """`97 ms of computing an iteration`, and what input takes meanwhile."""
    text = f"{time_text(setting.compute_s)} of computing an iteration"
    input_s = setting.table.lengthened(setting.batch_factor).input_and_copy_s
    return f"{text}, {time_text(input_s)} of reading and copying its input meanwhile" if input_s else text


def basis(table: LayerTable, source: str) -> str:
    """What the times of computing rest on, in a sentence or two."""
    missing = not_in_trace(table)
    return f"Computing: {source}." + (f" Not in the trace, so not counted: {', '.join(missing)}." if missing else "")


def render_advice(advice: Advice, trace: str, source: str, console: Console) -> None:
    """The answer, and each change with its price; `source` says where the trace's times are from."""
    for sentence in headline(advice):
        console.print(sentence, style="bold", highlight=False, markup=False)
    today = advice.today
    table = today.table
    console.print(
        f"\n{trace}: {computing_text(today)}, "
        f"{size_text(table.size_bytes)} of gradients; {today.collective}, {percent_text(today.efficiency)} of the "
        f"links' rate filled, {time_text(today.latency_s)} one way, fusion: {fusion_text(today)}",
        highlight=False,
        markup=False,
    )
    console.print(f"{basis(table, source)}\n", highlight=False, markup=False)
    rows = Table(box=None, pad_edge=False)
    rows.add_column("one change")
    rows.add_column("scaling factor", justify="right")
    rows.add_column("iteration", justify="right")
    rows.add_column("")
    decimals = share_decimals(advice)
    rows.add_row("as it is", percent_text(today.scaling_factor, decimals), time_text(today.iteration_s), "")
    for change in advice.changes:
        enough = "enough" if change.sufficient else "not enough"
        mark = "[green]enough[/]" if change.sufficient else f"[dim]{enough}[/]"
        setting = change.setting
        share = percent_text(setting.scaling_factor, decimals)
        rows.add_row(price(change, today), share, time_text(setting.iteration_s), mark)
    console.print(rows)
    if named := compressors_text(advice):
        console.print(f"\n{named}", highlight=False)
    console.print(f"\n{REACH}", style="dim", highlight=False)


def render_verification(verified: Verification, console: Console) -> None:
    """What was emulated, beside what was promised."""
    if verified.measured is None or (error := verified.error) is None:
        console.print(f"Not verified: {verified.missing or 'the run has no scaling factor'}", highlight=False)
    else:
        points = f"{abs(100 * error):.1f} points {'less' if error > 0 else 'more'} than predicted"
        near = f"is within {100 * TOLERANCE:g} points of" if verified.reached else "misses"
        met = "meets" if verified.measured >= verified.target else near
        decimals = decimals_apart(verified.target, [verified.measured])
        slower = f", time {verified.dilation:g} times slower" if verified.dilation > 1 else ""
        console.print(
            f"Measured in emulation ({verified.outcome}{slower}): {percent_text(verified.measured, decimals)}, "
            f"{points}; {met} {percent_text(verified.target, decimals)}.",
            style="bold",
            highlight=False,
        )
    for reason in verified.reasons:
        console.print(f"  {reason}", style="dim", highlight=False, markup=False)
    if verified.record is not None:
        console.print(f"  record: {verified.record}", style="dim", highlight=False, markup=False)


def advice_json(advice: Advice, trace: str, source: str, verified: Verification | None = None) -> dict[str, Any]:
    """The advice as plain data, for scripts. Every number is predicted but those of `verified`."""
    recommended, table = advice.recommended, advice.today.table
    return {
        "kind": "predicted",
        "trace": trace,
        "source": source,
        "batch_size": table.batch_size,
        "size_bytes": table.size_bytes,
        "not_counted": [*NOT_COUNTED, *not_in_trace(table)],
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
        "compressors": compressors(advice),
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
        "collective": setting.collective,
        "compression_ratio": setting.compression_ratio,
        "gathered_compression_ratio": setting.gathered_ratio,
        "batch_factor": setting.batch_factor,
        "synchronisation_interval": setting.interval,
        "scaling_factor": setting.scaling_factor,
        "compute_s": setting.compute_s,
        "alone_s": setting.alone_s,
        "iteration_time_s": setting.iteration_s,
    }


def render_trace(table: LayerTable, trace: str, source: str, console: Console) -> None:
    """Totals, and the layers, or the largest of them."""
    gradients = table.gradients()
    console.print(Text.assemble((trace, "bold"), f"  {source}"))
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
            Text(layer.name),
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
