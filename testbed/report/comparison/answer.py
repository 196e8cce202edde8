"""What a sweep says, in a sentence or two: what is fastest where, or from where on more buys nothing. Pure.

A difference is claimed where it is more than the noise between runs, by the same intervals as `testbed compare`
(testbed.store.differences). Where points have one run each, that noise is not known: then the sentences say what was
measured and claim nothing. What rests on degraded runs is called degraded wherever it is named, and of points of which
some runs do not stand it is said how many do.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.record import number_text
from testbed.report.comparison.axes import grouped, horizontal, namer
from testbed.store.differences import Difference, RunValues, difference

if TYPE_CHECKING:
    from testbed.report.comparison.points import ComparedPoint, Comparison

NOISE_UNKNOWN: Final = (
    "The noise between runs is not known: before a difference is believed, let each point run several times "
    "(--set repeat=5)."
)
_NUM_NAMED: Final = 6
"""Points that are named one by one; of more, how many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    """One point's times."""

    name: str
    """Where it lies along what is compared."""
    full_name: str
    """All that was set for it."""
    runs: tuple[RunValues, ...]
    """Of each run the mean of its iterations, or the time of its command."""
    degraded: bool
    num_counted: int
    """Its runs, with those that do not stand."""
    waiting: float | None
    """The share of an iteration that is exposed communication."""

    @property
    def time_s(self) -> float:
        """The mean of its runs."""
        return sum(run.mean for run in self.runs) / len(self.runs)

    @property
    def text(self) -> str:
        """`412 ms`."""
        return number_text.time_text(self.time_s)

    @property
    def marked(self) -> str:
        """Its name, with a word where its runs are degraded."""
        return f"{self.name} (degraded)" if self.degraded else self.name

    @property
    def standing_text(self) -> str:
        """`2 of 5`."""
        return f"{len(self.runs)} of {self.num_counted}"


_Along = Mapping[str, _Cell]


def answer(comparison: "Comparison") -> list[str]:
    """Sentences about the means of iterations, of commands where those were run; none where fewer than two points
    have a result that stands."""
    axis, numbers = horizontal(comparison)
    groups = grouped(comparison, axis)
    place_of, full_name_of = namer(comparison.points, axis), namer(comparison.points, comparison.paths)
    found: dict[str, dict[str, _Cell]] = {}
    for group, points in groups.items():
        cells = [cell for point in points if (cell := _cell(point, place_of, full_name_of)) is not None]
        found[group] = {cell.name: cell for cell in sorted(cells, key=lambda cell: numbers.get(cell.name, 0.0))}
    everything = [cell for along in found.values() for cell in along.values()]
    if len(everything) < 2:
        return []
    known = True
    if not (sentences := _sentences(found, axis, ordered=bool(numbers), known=known)):
        known = False
        sentences = _sentences(found, axis, ordered=bool(numbers), known=known)
    if not sentences:
        return []
    if len(groups) > 1:
        places = {group: [place_of(point) for point in points] for group, points in groups.items()}
        sentences += _unknown(places, found)
    single = [cell.full_name for cell in everything if len(cell.runs) == 1] if known else []
    degraded = [cell.full_name for cell in everything if cell.degraded]
    partly = [f"{cell.full_name} ({cell.standing_text})" for cell in everything if cell.num_counted > len(cell.runs)]
    return [
        *([] if known else [NOISE_UNKNOWN]),
        *sentences,
        *([f"One run alone, of which no difference is claimed: {_named(single, len(everything))}."] if single else []),
        *([f"Only some runs stand of {_named(partly, len(everything))}."] if partly else []),
        *([f"Degraded, so with reservations: {_named(degraded, len(everything))}."] if degraded else []),
    ]


def _sentences(found: Mapping[str, _Along], axis: Sequence[str], *, ordered: bool, known: bool) -> list[str]:
    """With `known` claims about points that have several runs, none where these are too few; else what was measured."""
    spoken = {
        group: kept
        for group, along in found.items()
        if (kept := {name: cell for name, cell in along.items() if len(cell.runs) > 1 or not known})
    }
    if len(found) > 1:
        return _compared(spoken, known=known)
    along = next(iter(spoken.values()), {})
    if len(along) < 2:
        return []
    return [_along(" ".join(axis), along, known=known) if ordered else _fastest(along, known=known)]


def _cell(
    point: "ComparedPoint",
    place_of: "Callable[[ComparedPoint], str]",
    full_name_of: "Callable[[ComparedPoint], str]",
) -> _Cell | None:
    """None where no run stands."""
    runs = [RunValues(run.started_at, [run.iteration_time_s.mean]) for run in point.usable if run.iteration_time_s]
    runs += [RunValues(run.started_at, [run.command.time_s]) for run in point.usable if run.command]
    row = point.row()
    exposed_s, whole_s = row["exposed_communication_s"], row["iteration_time_s"]
    if not runs or not all(0 < run.mean < math.inf for run in runs):
        return None
    return _Cell(
        name=place_of(point),
        full_name=full_name_of(point),
        runs=tuple(runs),
        degraded=point.degraded,
        num_counted=len(point.counted),
        waiting=exposed_s / whole_s if isinstance(exposed_s, float) and isinstance(whole_s, float) else None,
    )


def _speedup(slow: _Cell, fast: _Cell) -> Difference:
    """The first one's time over the second one's."""
    return difference(fast.runs, slow.runs)


def _surely_slower(slow: _Cell, fast: _Cell) -> bool:
    """Whether one takes longer than the other by more than noise."""
    found = _speedup(slow, fast)
    return found.distinguishable and found.ratio > 1


def _times(slow: _Cell, fast: _Cell) -> str:
    """`1.61 (1.58 to 1.64)`; without an interval where none is known."""
    found = _speedup(slow, fast)
    text = number_text.digits(found.ratio)
    return text if found.low is None or found.high is None else f"{text} ({_range(found.low, found.high)})"


def _range(low: float, high: float) -> str:
    return f"{number_text.digits(low)} to {number_text.digits(high)}"


def _along(path: str, along: _Along, *, known: bool) -> str:
    """Of one quantity: whether it matters, from where on it does not any more, and what is waited for in the end."""
    cells = list(along.values())
    if cells[-1].time_s > cells[0].time_s:
        cells.reverse()
    first, last = cells[0], cells[-1]
    what, rest = "the command", ""
    if last.waiting is not None:
        what = "an iteration"
        rest = f" At {last.marked} {100 * last.waiting:.0f} % of an iteration waits for communication."
    if not known:
        took = f"{first.text} at {first.marked} and {last.text} at {last.marked}"
        return f"In these runs {what} took {took}: {_times(first, last)} times as fast.{rest}"
    best, slowest = min(cells, key=_time_s), max(cells, key=_time_s)
    if not any(_surely_slower(slowest, cell) or _surely_slower(cell, best) for cell in cells):
        ends = f"{first.text} at {first.marked}, {last.text} at {last.marked}"
        return f"{path} makes no difference here beyond noise: {ends}, {_times(first, last)} times as fast.{rest}"
    faster = [cell for cell in cells if _surely_slower(first, cell)]
    if not faster:
        beside = f"{_times(slowest, best)} times as long as at {best.marked} ({best.text})"
        return f"{path} matters at {slowest.marked}: {what} takes {slowest.text} there, {beside}.{rest}"
    least = min(faster, key=_time_s)
    # The fastest first: most cells are slower than that one, and need no other.
    others = sorted(cells, key=_time_s)
    enough = next((cell for cell in faster if not any(_surely_slower(cell, other) for other in others)), least)
    factor = f"{_times(first, enough)} times as fast ({first.text}, {enough.text})"
    beginning = f"From {first.marked} to {enough.marked} {what} becomes {factor}"
    return f"{beginning}{_beyond(path, cells, enough)}.{rest}"


def _beyond(path: str, cells: Sequence[_Cell], enough: _Cell) -> str:
    """What is to be said of the values behind the one that is enough, and of the last step where there are none."""
    last = cells[-1]
    if enough is not last:
        slower = _surely_slower(last, enough)
        times = f"{_times(last, enough)} times as long" if slower else f"{_times(enough, last)} times as fast"
        says = "becomes slower again" if slower else "is no faster by more than noise"
        return f"; what lies beyond, up to {last.marked}, {says} ({last.text}, {times})"
    if not all(_surely_slower(slow, fast) for slow, fast in itertools.pairwise(cells)):
        return ""
    before = cells[-2]
    step = f", the last from {before.marked} on {_times(before, last)} times" if len(cells) > 2 else ""
    return f"; every step of {path} counts{step}"


def _time_s(cell: _Cell) -> float:
    return cell.time_s


def _fastest(along: _Along, *, known: bool) -> str:
    """Of names: the fastest, against the first."""
    reference, *others = along.values()
    first = f"{reference.marked} ({reference.text})"
    slowest = max(others, key=_time_s)
    if not known:
        best = min(along.values(), key=_time_s)
        if best is reference:
            longer = f"{_times(slowest, reference)} times as long"
            return f"In these runs {first} was the fastest; {slowest.marked} took {longer}."
        than = f"{_times(reference, best)} times as fast as {first}"
        return f"In these runs {best.marked} was the fastest with {best.text}, {than}."
    if faster := [cell for cell in others if _surely_slower(reference, cell)]:
        best = min(faster, key=_time_s)
        alike = [cell.marked for cell in others if cell is not best and not _surely_slower(cell, best)]
        text = f"{best.marked} is the fastest with {best.text}, {_times(reference, best)} times as fast as {first}"
        return f"{text}; {_listed(alike)} cannot be told apart from it." if alike else f"{text}."
    if slower := [cell for cell in others if _surely_slower(cell, reference)]:
        slowest = max(slower, key=_time_s)
        longer = f"{_times(slowest, reference)} times as long"
        return f"Nothing is faster than {first} by more than noise; {slowest.marked} takes {longer}."
    ends = [end for cell in others for end in _ends(_speedup(cell, reference))]
    who = f"{slowest.marked} cannot" if len(others) == 1 else "None can"
    return f"{who} be told apart from {first}: {_range(min(ends), max(ends))} times as long."


def _ends(found: Difference) -> tuple[float, float]:
    return (found.ratio, found.ratio) if found.low is None or found.high is None else (found.low, found.high)


def _compared(groups: Mapping[str, _Along], *, known: bool) -> list[str]:
    """Several along the same axis: the fastest at each position, then where each is faster than the first."""
    if len(groups) < 2:
        return []
    reference, *others = groups
    positions = list(groups[reference])
    shared = [at for at in positions if any(at in groups[other] for other in others)]
    if not shared:
        return []
    best = [_best_at(at, groups, known=known) for at in shared]
    if not known:
        return [_best(reference, best, known=False)]
    pays = {
        other: [at for at in shared if at in groups[other] and _surely_slower(groups[reference][at], groups[other][at])]
        for other in others
    }
    than = _paying(reference, pays, positions) if any(pays.values()) else _slower(reference, groups)
    return [_best(reference, best, known=True), than]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Winner:
    """Who is the fastest at one position."""

    at: str
    groups: tuple[str, ...]
    """Several where they cannot be told apart; none where nothing is faster than the reference."""
    times: str
    """As fast as the reference."""


def _best_at(at: str, groups: Mapping[str, _Along], *, known: bool) -> _Winner:
    (_, reference), *others = [(group, along[at]) for group, along in groups.items() if at in along]
    if known:
        faster = [(group, cell) for group, cell in others if _surely_slower(reference, cell)]
    else:
        faster = [(group, cell) for group, cell in others if cell.time_s < reference.time_s]
    if not faster:
        return _Winner(at=_place(at, [reference, *(cell for _, cell in others)]), groups=(), times="")
    winner, best = min(faster, key=lambda each: each[1].time_s)
    alike = [(group, cell) for group, cell in others if group == winner or (known and not _surely_slower(cell, best))]
    return _Winner(
        at=_place(at, [reference, *(cell for _, cell in alike)]),
        groups=tuple(group for group, _ in alike),
        times=_times(reference, best),
    )


def _place(at: str, cells: Sequence[_Cell]) -> str:
    return f"{at} (degraded)" if any(cell.degraded for cell in cells) else at


def _best(reference: str, winners: Sequence[_Winner], *, known: bool) -> str:
    parts: list[tuple[tuple[str, ...], list[_Winner]]] = []
    for winner in winners:
        if not parts or parts[-1][0] != winner.groups:
            parts.append((winner.groups, []))
        parts[-1][1].append(winner)
    texts = []
    for groups, here in parts:
        places = _listed([winner.at for winner in here])
        if not groups:
            texts.append(f"at {places} nothing {'is' if known else 'was'} faster than {reference}")
        else:
            times = _listed([winner.times for winner in here])
            names = " or ".join(groups)
            texts.append(
                f"at {places} {names} {'is' if known else 'was'} the fastest, {times} times as fast as {reference}"
            )
    text = "; ".join(texts)
    return f"{text[0].upper()}{text[1:]}." if known else f"In these runs {text}."


def _paying(reference: str, pays: Mapping[str, Sequence[str]], positions: Sequence[str]) -> str:
    texts = []
    for at, groups in sorted(_by_place(pays).items(), key=lambda item: -len(item[0])):
        place = "nowhere" if not at else "everywhere" if len(at) == len(positions) else f"at {_listed(at)}"
        texts.append(f"{place}: {', '.join(groups)}")
    return f"Faster than {reference} by more than noise {'; '.join(texts)}."


def _slower(reference: str, groups: Mapping[str, _Along]) -> str:
    """Of what is nowhere faster than the first: how much slower, from the least to the most."""
    texts = []
    for other, along in groups.items():
        if other == reference:
            continue
        shared = [at for at in along if at in groups[reference]]
        surely = [at for at in shared if _surely_slower(along[at], groups[reference][at])]
        pairs = sorted(((along[at], groups[reference][at]) for at in surely), key=lambda pair: _speedup(*pair).ratio)
        ends = dict.fromkeys(number_text.digits(_speedup(*pair).ratio) for pair in pairs[:1] + pairs[-1:])
        if len(pairs) == 1:
            ends = dict.fromkeys([_times(*pairs[0])])
        if not shared:
            continue
        if not surely:
            texts.append(f"{other} cannot be told apart from it")
        elif len(surely) == len(shared):
            texts.append(f"{other} takes {' to '.join(ends)} times as long")
        else:
            longer = f"{' to '.join(ends)} times as long at {_listed(surely)}"
            texts.append(f"{other} takes {longer} and cannot be told apart elsewhere")
    return f"{_listed(texts)}."


def _unknown(places: Mapping[str, Sequence[str]], found: Mapping[str, _Along]) -> list[str]:
    """Who has no result where there should be one, so that nobody takes it for slow there."""
    missing = {group: [at for at in names if at not in found[group]] for group, names in places.items()}
    nowhere = [group for group in missing if not found[group]]
    partly = {group: at for group, at in missing.items() if at and group not in nowhere}
    texts = [f"at {_listed(at)}: {', '.join(groups)}" for at, groups in _by_place(partly).items()]
    texts += [f"anywhere: {', '.join(nowhere)}"] if nowhere else []
    return [f"No result stands {'; '.join(texts)}."] if texts else []


def _by_place(places: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Those that have the same places, together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for group, at in places.items():
        found.setdefault(tuple(at), []).append(group)
    return found


def _named(names: Sequence[str], total: int) -> str:
    """All of them, or how many where they are too many to read."""
    if len(names) == total:
        return f"all {total} points"
    return ", ".join(names) if len(names) <= _NUM_NAMED else f"{len(names)} of {total} points"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
