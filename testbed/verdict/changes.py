"""What the record of a run says of links that changed meanwhile: in words, and as rates over time. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from testbed.record.summary import ChangeSummary
from transports.units import parse_time_s

Floats = npt.NDArray[np.float64]
_TOGETHER_S: Final = 0.5
"""Changes alike that follow each other so closely were requested in one go."""
_NUM_NAMED: Final = 4


class RateHistory:
    """The configured rate of one direction over time."""

    def __init__(self, changes: pl.DataFrame, *, link: str, node: str, rate_bps: float) -> None:
        """`rate_bps` before the first change; times are those of the frame, wall seconds."""
        mine = changes
        if not changes.is_empty():  # of most runs they are, and a verdict makes hundreds of histories
            mine = changes.filter((pl.col("link") == link) & (pl.col("node") == node)).sort("at_s")
        self._at_s = mine["at_s"].to_numpy()
        self._rates = np.concatenate([[rate_bps], mine["rate_bps"].to_numpy()])
        before_bits = self._rates[1:-1] * np.diff(self._at_s)
        self._bits = np.concatenate([[0.0], np.cumsum(before_bits)]) if len(self._at_s) else np.zeros(0)

    @property
    def highest_bps(self) -> float:
        """That was in force at some moment."""
        return float(self._rates.max())

    def bits(self, start_s: Floats, end_s: Floats) -> Floats:
        """What it could have carried in each interval, at wall time's pace; shape as given."""
        return self._until(end_s) - self._until(start_s)

    def mean_bps(self, start_s: Floats, end_s: Floats) -> float:
        """Over all of the intervals; the first rate if they have no length."""
        length_s = float(np.sum(end_s - start_s))
        return float(np.sum(self.bits(start_s, end_s))) / length_s if length_s > 0 else float(self._rates[0])

    def steps(self, start_s: float, end_s: float) -> tuple[Floats, Floats]:
        """The rate from each moment on, from the start to the end."""
        inside = (self._at_s > start_s) & (self._at_s < end_s)
        at_s = np.concatenate([[start_s], self._at_s[inside], [end_s]])
        return at_s, self._rates[np.searchsorted(self._at_s, at_s, side="right")]

    def _until(self, at_s: Floats) -> Floats:
        """Bits since the first change, negative before it."""
        if not len(self._at_s):
            return np.asarray(at_s * self._rates[0], dtype=np.float64)
        index = np.searchsorted(self._at_s, at_s, side="right")
        since = np.maximum(index - 1, 0)
        return np.asarray(self._bits[since] + self._rates[index] * (at_s - self._at_s[since]), dtype=np.float64)


def least_delay_s(changes: pl.DataFrame, *, link: str, node: str, delay_s: float) -> float:
    """The least delay that was configured for a direction; `delay_s` before the first change."""
    mine = (pl.col("link") == link) & (pl.col("node") == node) & (pl.col("setting") == "delay")
    return min([delay_s, *map(parse_time_s, changes.filter(mine)["after"].to_list())])


def changed_directions(changes: pl.DataFrame) -> set[tuple[str, str]]:
    """By link and sending node. Whatever has changed may have cost packets, or made TCP send some again: a slower link
    is late with its acknowledgements."""
    return set(zip(changes["link"].to_list(), changes["node"].to_list(), strict=True))


def change_notes(changes: pl.DataFrame) -> list[str]:
    """What a reader of the verdict should know of them."""
    if changes.is_empty():
        return []
    manual = changes.filter(pl.col("source") == "manual")
    found = ["links changed while the run went on: the bound and the prediction are for what they were at its start"]
    if manual.height:
        links = ", ".join(manual["link"].unique(maintain_order=True))
        found.append(f"{manual.height} settings were changed manually ({links}): running the spec again will not do so")
    return found


def summarize_changes(changes: pl.DataFrame, *, origin_s: float, dilation: float) -> list[ChangeSummary]:
    """In the order of their times: the schedule's and people's one by one, each trace as one."""
    rows = [_Row(**row) for row in changes.sort("at_s", maintain_order=True).iter_rows(named=True)]
    groups = [*_at_once([row for row in rows if row.source != "trace"]), *_traces(rows)]
    return sorted(
        (_summary(group, origin_s=origin_s, dilation=dilation) for group in groups), key=lambda change: change.at_s
    )


class _Row(NamedTuple):
    """A row of CHANGE_SCHEMA."""

    at_s: float
    link: str
    node: str
    to: str
    setting: str
    before: str
    after: str
    rate_bps: float
    source: Any


def _at_once(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    open_: dict[tuple[str, str, str, str], list[_Row]] = {}
    for row in rows:
        key = row.setting, row.before, row.after, row.source
        group = open_.get(key)
        again = group is not None and (row.link, row.node) in {(each.link, each.node) for each in group}
        if group is None or again or row.at_s - group[0].at_s > _TOGETHER_S:
            group = open_[key] = []
            yield group
        group.append(row)


def _traces(rows: Sequence[_Row]) -> list[list[_Row]]:
    groups: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        if row.source == "trace":
            groups.setdefault((row.link, row.setting), []).append(row)
    return list(groups.values())


def _summary(rows: Sequence[_Row], *, origin_s: float, dilation: float) -> ChangeSummary:
    hops = list(dict.fromkeys((row.node, row.to) for row in rows))
    names = list(dict.fromkeys(_name(hop, both=hop[::-1] in hops) for hop in hops))
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ChangeSummary(
        at_s=(rows[0].at_s - origin_s) / dilation,
        links=", ".join(names[:_NUM_NAMED]) + more,
        setting=rows[0].setting,
        before=rows[0].before,
        after=rows[-1].after,
        source=rows[0].source,
        num_steps=len(rows) // len(hops) if rows[0].source == "trace" else 1,
    )


def _name(hop: tuple[str, str], *, both: bool) -> str:
    """`w1 → s0`, or `w1 ↔ s0`, the same for both of a link."""
    first, second = sorted(hop, reverse=True) if both else hop
    return f"{first} ↔ {second}" if both else f"{first} → {second}"
