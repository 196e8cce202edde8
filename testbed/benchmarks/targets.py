"""What a benchmark is held to: each row says what was measured, the target, and whether it holds.

A sample with CPU steal is repeated; what the cores and the hypervisor did meanwhile is in the row.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TextIO, TypeVar

from rich.console import Console
from rich.table import Table

from testbed.errors import RunFailedError, SpecError, TestbedError
from testbed.measure.machine import MachineSample
from testbed.record.summary import STANDING, Outcome
from testbed.system.environment import describe
from transports.errors import TransportError

_log: Final = logging.getLogger(__name__)

Row = dict[str, Any]
Benchmarks = Mapping[str, Callable[[], Iterator[Row]]]
"""By the name that `--only` takes: each yields a row as soon as it is measured."""
Result = TypeVar("Result")
MAX_STEAL_SHARE: Final = 0.02
NUM_ATTEMPTS: Final = 4


def jain_index(rates_bps: Sequence[float]) -> float:
    """How evenly flows share: 1 where all rates are alike, 1/n where one of n has everything (Jain et al., 1984)."""
    return sum(rates_bps) ** 2 / (len(rates_bps) * sum(rate_bps**2 for rate_bps in rates_bps))


def target_row(
    what: str, value: float, target: float | None, facts: Mapping[str, Any], *, at_least: bool = False
) -> Row:
    """Without a target the row only reports."""
    holds = None if target is None else bool(value >= target if at_least else value <= target)
    return {"what": what, "value": value, "target": target, "at_least": at_least, "holds": holds, **facts}


def require_standing(what: str, outcome: Outcome, reasons: Sequence[str]) -> None:
    """Raises RunFailedError where a run's numbers do not stand: nothing can be held to them."""
    if outcome not in STANDING:
        raise RunFailedError(f"{what} is {outcome}: {'; '.join(reasons)}")


def degraded_runs(runs: Mapping[str, tuple[Outcome, Sequence[str]]]) -> Row:
    """What a row says of those of its runs, by name, whose numbers stand but are only degraded, with the gravest of
    each one's reasons."""
    return {"degraded": [f"{name}: {reasons[0]}" for name, (outcome, reasons) in runs.items() if outcome == "degraded"]}


def quietly(measure: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """The first measurement without CPU steal, or the one with the least, and what the cores did."""
    best: tuple[Result, dict[str, float]] | None = None
    for _ in range(NUM_ATTEMPTS):
        before = MachineSample.take()
        measured = measure()
        after = MachineSample.take()
        facts = {"steal_share": after.steal_share_since(before), "busy_share": after.busy_share_since(before)}
        if best is None or facts["steal_share"] < best[1]["steal_share"]:
            best = measured, facts
        if facts["steal_share"] <= MAX_STEAL_SHARE:
            break
    assert best is not None
    return best


def chosen(benchmarks: Benchmarks, names: Sequence[str]) -> Benchmarks:
    """Those of the names, all without a name. Raises SpecError for a name there is none of."""
    unknown = [name for name in names if name not in benchmarks]
    if unknown:
        raise SpecError(f"--only {','.join(unknown)}: allowed: {', '.join(benchmarks)}")
    return {name: benchmarks[name] for name in names or benchmarks}


class Journal:
    """What has been measured, and what could not be: reported and written row by row, so that nothing that comes later
    takes it away."""

    def __init__(self, *, stream: TextIO | None, tell: Callable[[str], None]) -> None:
        """`tell` gets each row and each failure in words; `stream` gets each row as a line of JSON."""
        self.rows: list[Row] = []
        self.failures: dict[str, Exception] = {}
        """By what failed."""
        self._stream = stream
        self._tell = tell

    def __enter__(self) -> Self:
        self._write(f'{{"schema_version": 2, "environment": {json.dumps(describe())},\n"rows": [\n')
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever ends it: what was written is whole JSON."""
        failures = {what: str(error) for what, error in self.failures.items()}
        self._write(f'], "failures": {json.dumps(failures)}}}\n')

    def measure(self, name: str, benchmark: Callable[[], Iterator[Row]], /, **facts: str) -> None:
        """Every row of the benchmark, with `facts`; an error ends this benchmark and no other."""
        try:
            for row in benchmark():
                self._add({**facts, **row})
        except Exception as error:  # noqa: BLE001 - whatever it is, others are measured, and the command fails
            if not isinstance(error, TestbedError | TransportError):
                _log.exception("%s", name)
                error = RunFailedError(f"{type(error).__name__}: {error}")
            self.failures[name] = error
            self._tell(f"{name}: not measured: {error}")

    def require_all(self) -> None:
        """Raises NotMeasuredError naming what failed, if anything has."""
        if self.failures:
            raise NotMeasuredError(self.failures)

    def _add(self, row: Row) -> None:
        self._write(f"{',' if self.rows else ''}{json.dumps(row)}\n")
        self.rows.append(row)
        self._tell(row_text(row))

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


class NotMeasuredError(TestbedError):
    """Benchmarks failed; its exit code is theirs where they agree."""

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        names: dict[str, list[str]] = {}
        for name, error in failures.items():
            names.setdefault(str(error), []).append(name)
        super().__init__("\n".join(f"{', '.join(of)}: not measured: {message}" for message, of in names.items()))
        codes = {error.exit_code if isinstance(error, TestbedError) else 1 for error in failures.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else RunFailedError.exit_code


def row_text(row: Row) -> str:
    """`rate error at 1gbit: 0.0002 (at most 0.005): yes`; below a row that misses its target, the reasons it gives, and
    below any that rests on degraded runs, why these are."""
    measured = f"{row['what']}: {row['value']:.4g}"
    degraded = [f"degraded: {run}" for run in row.get("degraded", [])]
    if row["target"] is None:
        return "\n    ".join([measured, *degraded])
    bound = "at least" if row["at_least"] else "at most"
    text = f"{measured} ({bound} {row['target']:g}): {'yes' if row['holds'] else 'NO'}"
    return "\n    ".join([text, *([] if row["holds"] else row.get("reasons", [])), *degraded])


def render_targets(rows: Sequence[Row], console: Console) -> None:
    """What was measured, the target, and whether it holds."""
    table = Table(title="targets", title_justify="left", box=None, pad_edge=False)
    for column in ("what", "measured", "target", "holds"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        if row["target"] is None:
            table.add_row(row["what"], f"{row['value']:.4g}", "", "[yellow]degraded[/]" if row.get("degraded") else "")
            continue
        mark = "[green]yes[/]" if row["holds"] else "[red]no[/]"
        mark += "[yellow], degraded[/]" if row.get("degraded") else ""
        bound = ">=" if row.get("at_least") else "<="
        table.add_row(row["what"], f"{row['value']:.4g}", f"{bound} {row['target']:g}", mark)
    console.print(table)
