"""What a sweep says, in a sentence or two: what is fastest where, or from where on more buys nothing. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from testbed.record import number_text
from testbed.report.comparison.axes import grouped, horizontal, point_name

if TYPE_CHECKING:
    from testbed.report.comparison.points import ComparedPoint, Comparison

_NOTICEABLE: Final = 1.03
"""Times that are nearer to each other than this are called equal."""
_ENOUGH: Final = 1.1
"""Of the shortest time: what comes after it hardly matters."""


def answer(comparison: "Comparison") -> list[str]:
    """Sentences about the means of iterations, of commands where those were run; none where fewer than two points
    have a result that stands."""
    axis, numbers = horizontal(comparison)
    found: dict[str, dict[str, float]] = {}
    for group, points in grouped(comparison, axis).items():
        named = sorted(
            ((point_name(point, axis), point) for point in points), key=lambda each: numbers.get(each[0], 0.0)
        )
        found[group] = {name: time_s for name, point in named if (time_s := _time_s(point)) is not None}
    times_s = {group: along for group, along in found.items() if along}
    if sum(map(len, times_s.values())) < 2:
        return []
    if len(times_s) > 1:
        compared = _compared(times_s)
        return [*compared, *_unknown(found)] if compared else []
    (along,) = times_s.values()
    if not numbers:
        return [_fastest(along)]
    waiting = {point_name(point, axis): share for point in comparison.points if (share := _waiting(point)) is not None}
    return [_along(" ".join(axis), along, waiting)]


def _time_s(point: "ComparedPoint") -> float | None:
    times_s = [run.iteration_time_s.mean for run in point.usable if run.iteration_time_s]
    times_s += [run.command.time_s for run in point.usable if run.command]
    return statistics.fmean(times_s) if times_s else None


def _waiting(point: "ComparedPoint") -> float | None:
    """The share of an iteration that is exposed communication."""
    row = point.row()
    exposed_s, whole_s = row["exposed_communication_s"], row["iteration_time_s"]
    return exposed_s / whole_s if isinstance(exposed_s, float) and isinstance(whole_s, float) else None


def _along(path: str, times_s: Mapping[str, float], waiting: Mapping[str, float]) -> str:
    """Of one quantity: whether it matters, from where on it does not any more, and what is waited for in the end."""
    longest, shortest = max(times_s.values()), min(times_s.values())
    positions = list(times_s)
    if times_s[positions[-1]] > times_s[positions[0]]:
        positions.reverse()
    first, last = positions[0], positions[-1]
    texts = {position: number_text.time_text(time_s) for position, time_s in times_s.items()}
    rest = f" At {last} {100 * waiting[last]:.0f} % of an iteration waits for communication." if last in waiting else ""
    if longest < _ENOUGH * shortest:
        return f"{path} hardly matters here: {texts[first]} at {first}, {texts[last]} at {last}.{rest}"
    enough = next(position for position in positions if times_s[position] <= _ENOUGH * shortest)
    factor = number_text.digits(times_s[first] / times_s[enough])
    what = "an iteration" if waiting else "the command"
    beginning = f"From {first} to {enough} {what} becomes {factor} times as fast ({texts[first]}, {texts[enough]})"
    if enough == last:
        return f"{beginning}, and every step of {path} counts.{rest}"
    return f"{beginning}; what lies beyond, up to {last}, brings less than 10 % more ({texts[last]}).{rest}"


def _fastest(times_s: Mapping[str, float]) -> str:
    """Of names: the fastest, against the first."""
    reference, *_ = times_s
    best = min(times_s, key=times_s.__getitem__)
    texts = f"{reference} ({number_text.time_text(times_s[reference])})"
    faster = times_s[reference] / times_s[best]
    if faster >= _NOTICEABLE:
        than = f"{number_text.digits(faster)} times as fast as {texts}"
        return f"{best} is the fastest with {number_text.time_text(times_s[best])}, {than}."
    slowest = max(times_s, key=times_s.__getitem__)
    slower = times_s[slowest] / times_s[reference]
    if slower < _NOTICEABLE:
        return f"All are as fast as {texts}."
    return f"Nothing is faster than {texts}; {slowest} takes {number_text.digits(slower)} times as long."


def _compared(times_s: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Several along the same axis: the fastest at each position, then where each is faster than the first."""
    reference, *others = times_s
    positions = list(times_s[reference])
    best, pays = {}, {other: list[str]() for other in others}
    for position in positions:
        if not any(position in times_s[other] for other in others):
            continue
        here = {group: along[position] for group, along in times_s.items() if position in along}
        for other in others:
            if other in here and here[reference] >= _NOTICEABLE * here[other]:
                pays[other].append(position)
        fastest = min(here, key=here.__getitem__)
        best[position] = fastest, here[reference] / here[fastest]
    if not best:
        return []
    than = _paying(reference, pays, positions) if any(pays.values()) else _slower(times_s)
    return [_best(reference, best), than]


def _best(reference: str, best: Mapping[str, tuple[str, float]]) -> str:
    parts: list[tuple[str, list[str], list[float]]] = []
    for position, (group, faster) in best.items():
        winner = group if faster >= _NOTICEABLE else reference
        if not parts or parts[-1][0] != winner:
            parts.append((winner, [], []))
        parts[-1][1].append(position)
        parts[-1][2].append(faster)
    texts = []
    for winner, at, factors in parts:
        if winner == reference:
            texts.append(f"at {_listed(at)} nothing is faster than {reference}")
        else:
            times = _listed([number_text.digits(factor) for factor in factors])
            texts.append(f"at {_listed(at)} {winner} is the fastest, {times} times as fast as {reference}")
    text = "; ".join(texts)
    return f"{text[0].upper()}{text[1:]}."


def _paying(reference: str, pays: Mapping[str, Sequence[str]], positions: Sequence[str]) -> str:
    texts = []
    for at, groups in sorted(_by_place(pays).items(), key=lambda item: -len(item[0])):
        place = "nowhere" if not at else "everywhere" if len(at) == len(positions) else f"at {_listed(at)}"
        texts.append(f"{place}: {', '.join(groups)}")
    return f"Faster than {reference} {'; '.join(texts)}."


def _slower(times_s: Mapping[str, Mapping[str, float]]) -> str:
    """Of what is nowhere faster than the first: how much slower, from the least to the most."""
    reference, *others = times_s
    texts = []
    for other in others:
        factors = sorted(
            along / times_s[reference][at] for at, along in times_s[other].items() if at in times_s[reference]
        )
        if factors:
            ends = dict.fromkeys(number_text.digits(factor) for factor in (factors[0], factors[-1]))
            texts.append(f"{other} takes {' to '.join(ends)} times as long")
    return f"{_listed(texts)}."


def _unknown(times_s: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Who has no result where, so that nobody takes it for slow there."""
    positions = dict.fromkeys(position for along in times_s.values() for position in along)
    missing = {group: [at for at in positions if at not in along] for group, along in times_s.items()}
    texts = [
        f"{'anywhere' if len(at) == len(positions) else f'at {_listed(at)}'}: {', '.join(groups)}"
        for at, groups in _by_place(missing).items()
        if at
    ]
    return [f"No result stands {'; '.join(texts)}."] if texts else []


def _by_place(places: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Those that have the same places, together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for group, at in places.items():
        found.setdefault(tuple(at), []).append(group)
    return found


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
