"""Records and comparisons as a person reads them, and as a script does."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.record.number_text import DASH, digits, number_text, time_text
from testbed.store.compare import Compared
from testbed.store.differences import CONFIDENCE, Difference
from testbed.store.index import Problem
from testbed.store.metrics import Metric

_STYLES: Final = {"valid": "green", "degraded": "yellow"}
_WIDE: Final = 120


def render_runs(runs: Sequence[Mapping[str, Any]], problems: Sequence[Problem], console: Console) -> None:
    """A row for each run, newest first, and what cannot be read."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    wide = console.width >= _WIDE
    for header in ("run", *(("name", "workload") if wide else ()), "workers", "link", "exchange"):
        table.add_column(header, overflow="fold", no_wrap=header == "run")
    for header in ("iteration", "scaling", *(("all-reduce",) if wide else ()), "outcome"):
        table.add_column(header, justify="left" if header == "outcome" else "right", no_wrap=True)
    for run in runs:
        delay = run["link_delay"]
        link = f"{run['link_rate']}{'' if delay in (None, '0ns') else f', {delay}'}"
        compression = run["compression"]
        exchange = run["stack"] or f"{run['collective']}/{run['channel']}"
        exchange += f"/{compression}" if compression not in (None, "none") else ""
        table.add_row(
            run["run_id"],
            *((Text(run["name"]), Text(run["workload"] or "")) if wide else ()),
            str(run["workers"]),
            Text(link),
            Text(exchange),
            time_text(run["iteration_time_s"]),
            number_text(run["scaling_factor"]),
            *((time_text(run["allreduce_time_s"]),) if wide else ()),
            Text(run["outcome"], style=_STYLES.get(run["outcome"], "red")),
        )
    console.print(table, highlight=False)
    render_problems(problems, console)


def render_problems(problems: Sequence[Problem], console: Console) -> None:
    """What is left out, each by its name and reason."""
    for problem in problems:
        console.print(Text(f"left out: {problem.record}: {problem.problem}", style="yellow"), soft_wrap=True)


def render_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The answer to a query."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(DASH if row[name] is None else str(row[name])) for name in columns))
    console.print(table, highlight=False)


def render_compared(compared: Compared, console: Console) -> None:
    """Settings with their means, and a sentence for each but the first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("setting", overflow="fold")
    for header in ("runs", compared.metric, "of the first", f"{100 * CONFIDENCE:.0f} % interval"):
        table.add_column(header, justify="right", no_wrap=True)
    texts = [("", ""), *((f"{found.ratio:.4f} x", _interval(found)) for found in compared.differences)]
    for setting, (ratio, interval) in zip(compared.settings, texts, strict=True):
        value = value_text(compared.metric, setting.mean)
        table.add_row(Text(setting.name), str(len(setting.values)), value, ratio, interval)
    console.print(table, highlight=False)
    console.print()
    for text in sentences(compared):
        console.print(Text(text), highlight=False)
    for note in compared.notes:
        console.print(Text(f"• {note}", style="yellow"), soft_wrap=True)


def sentences(compared: Compared) -> list[str]:
    """What the comparison says of each setting but the first."""
    first, *others = compared.settings
    pairs = zip(others, compared.differences, strict=True)
    return [_sentence(other.name, first.name, found, compared) for other, found in pairs]


def _sentence(name: str, first: str, found: Difference, compared: Compared) -> str:
    change, interval = ratio_text(found.ratio), interval_text(found)
    match compared.finding(found):
        case "too few iterations to say":
            return f"{name}: {change} against {first}; too few iterations to say how surely."
        case "noise between runs not known":
            return f"{name}: {change} against {first}; {interval} by the noise within the runs alone."
        case "not distinguishable from noise":
            return f"{name} and {first} cannot be told apart: {interval} ({basis_text(found)})."
        case finding:
            return f"{name} is {finding} than {first}: {change} ({interval}; {basis_text(found)})."


def basis_text(found: Difference) -> str:
    """What the interval rests on: `5 pairs made in turns`."""
    if found.basis == "pairs":
        return f"{found.num_first} pairs made in turns"
    if found.basis == "one run":
        return "iterations within runs alone"
    return f"{found.num_first} and {found.num_second} runs"


def ratio_text(ratio: float) -> str:
    """`+3.1 %`; of more than twice as much, or less than half, the factor."""
    return f"{100 * (ratio - 1):+.1f} %" if 0.5 < ratio < 2 else f"{ratio:.3g} x"


def interval_text(found: Difference) -> str:
    """`+2.8 % to +3.4 %`; a dash where it is not known."""
    return DASH if found.low is None or found.high is None else f"{ratio_text(found.low)} to {ratio_text(found.high)}"


def _interval(found: Difference) -> str:
    return DASH if found.low is None or found.high is None else f"{found.low:.4f} to {found.high:.4f}"


def value_text(metric: Metric, value: float) -> str:
    """A value of the metric, with its unit where it is a time."""
    return time_text(value) if metric.endswith("_s") and not metric.endswith("per_s") else digits(value)


def compared_json(compared: Compared) -> dict[str, Any]:
    """For scripts."""
    rows = []
    for setting, found in zip(compared.settings, (None, *compared.differences), strict=True):
        rows.append(
            {
                "name": setting.name,
                "spec_sha256": setting.summaries[0].spec_sha256,
                "runs": [summary.run_id for summary in setting.summaries],
                "outcomes": [summary.outcome for summary in setting.summaries],
                "mean": setting.mean,
                "means": [each.mean for each in setting.values],
                "ratio": found.ratio if found else None,
                "low": found.low if found else None,
                "high": found.high if found else None,
                "basis": found.basis if found else None,
                "distinguishable": found.distinguishable if found else None,
            }
        )
    return {
        "metric": compared.metric,
        "confidence": CONFIDENCE,
        "settings": rows,
        "sentences": sentences(compared),
        "notes": list(compared.notes),
    }
