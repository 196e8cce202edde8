"""How a sweep's points lie along what varies: which axis is spread out, and whether its values are numbers."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.experiment.sweep import settings_text, value_text
from transports.units import parse_fraction, parse_rate_bps, parse_size_bytes, parse_time_s

if TYPE_CHECKING:
    from testbed.report.comparison.points import ComparedPoint, Comparison


def quantities(values: Sequence[Any]) -> list[float] | None:
    """The numbers that all of these values are, in one unit; None where they are not."""
    for parse in (parse_fraction, parse_rate_bps, parse_time_s, parse_size_bytes):
        try:
            numbers = [float(parse(value)) for value in values]
        except ValueError:
            continue
        return numbers if len(set(numbers)) > 1 else None
    return None


def namer(points: "Sequence[ComparedPoint]", paths: Sequence[str]) -> "Callable[[ComparedPoint], str]":
    """What points are called by their settings of these paths: `1gbit top_k(ratio=1%)`, where what is null is not said.

    Points of unlike settings have unlike names: where they would not, all are called by paths and values.
    """

    def settings_of(point: "ComparedPoint") -> dict[str, Any]:
        return {path: point.settings[path] for path in paths}

    distinct = {_exactly(settings): settings for settings in map(settings_of, points)}
    for name_of in (_briefly, settings_text, _exactly):
        names = {key: name_of(settings) for key, settings in distinct.items()}
        if len(set(names.values())) == len(names):
            break
    return lambda point: names[_exactly(settings_of(point))]


def _briefly(settings: Mapping[str, Any]) -> str:
    return " ".join(value_text(value) for value in settings.values() if value is not None) or "null"


def _exactly(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, default=str)


def horizontal(comparison: "Comparison") -> tuple[tuple[str, ...], dict[str, float]]:
    """The axis that is spread out, and its values as numbers by their text, if they are.

    The first that varies and is a quantity; where none is, the first that varies.
    """
    varying = []
    for axis in comparison.axes:
        name_of = namer(comparison.points, axis)
        distinct = {name_of(point): point.settings[axis[0]] for point in comparison.points}
        if len(axis) == 1 and (numbers := quantities(list(distinct.values()))) is not None:
            return axis, dict(zip(distinct, numbers, strict=True))
        varying += [axis] if len(distinct) > 1 else []
    return next(iter([*varying, *comparison.axes]), ()), {}


def grouped(comparison: "Comparison", axis: Sequence[str]) -> "dict[str, list[ComparedPoint]]":
    """The points by everything but that axis, in the order of the sweep."""
    others = [path for path in comparison.paths if path not in axis]
    name_of = namer(comparison.points, others)
    groups: dict[str, list[ComparedPoint]] = {}
    for point in comparison.points:
        groups.setdefault(name_of(point) if others else "", []).append(point)
    return groups
