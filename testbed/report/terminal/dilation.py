"""A comparison of dilations as a person reads it."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from testbed.record.number_text import time_text
from testbed.verdict.dilation import Agreement, Comparison, Interval

_SAID: Final[dict[Agreement | None, str]] = {
    "agrees": "[green]agrees[/]: the answer does not depend on how slow time runs",
    "differs": "[red]differs[/]: something that time does not stretch is in the numbers; there is less of it at larger "
    "dilations",
    "undecided": "[yellow]undecided[/]: the intervals are wider than the tolerance; raise --repeat, or the iterations",
    None: "[red]no answer[/]: a run failed, or its numbers cannot be trusted",
}


def render_validation(
    compared: Sequence[Comparison],
    agreement: Agreement | None,
    tolerance: float,
    console: Console,
    *,
    not_compared: Sequence[str] = (),
) -> None:
    """A row for each dilation and measure, then measures that a run has not, then the answer."""
    table = Table(box=None, pad_edge=False)
    for column in ("dilation", "measure", "mean", "95 % from", "to", "over the first", "95 % from", "to", ""):
        table.add_column(column, justify="left" if column in {"measure", ""} else "right")
    for each in compared:
        seconds = each.measure.endswith("_s")
        ratio = ["", "", ""] if each.ratio is None else _numbers(each.ratio, seconds=False)
        table.add_row(
            f"{each.dilation:g}",
            _measure_text(each.measure),
            *_numbers(each.value, seconds=seconds),
            *ratio,
            each.agreement or "",
        )
    console.print(table)
    for measure in not_compared:
        console.print(f"{_measure_text(measure)}: not compared, a run has none", highlight=False)
    console.print(f"{_SAID[agreement]} (tolerance {100 * tolerance:g} %)", highlight=False)


def _measure_text(measure: str) -> str:
    return measure.removesuffix("_s").replace("_", " ")


def _numbers(interval: Interval, *, seconds: bool) -> list[str]:
    known = interval.high != float("inf")
    values = (interval.mean, *((interval.low, interval.high) if known else ()))
    texts = [time_text(value) if seconds else f"{value:.4f}" for value in values]
    return texts + [""] * (3 - len(texts))
