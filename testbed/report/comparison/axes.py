"""How a sweep's points lie along what varies: which axis is spread out, and whether its values are numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from testbed.experiment.sweep import value_text
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


def point_name(point: "ComparedPoint", paths: Sequence[str]) -> str:
    """`1gbit top_k(ratio=1%)`; what is null is not said."""
    values = [value_text(point.settings[path]) for path in paths if point.settings[path] is not None]
    return " ".join(values) or "null"


def horizontal(comparison: "Comparison") -> tuple[tuple[str, ...], dict[str, float]]:
    """The axis that is spread out, and its values as numbers by their text, if they are.

    The first that varies and is a quantity; where none is, the first that varies.
    """
    varying = []
    for axis in comparison.axes:
        distinct = {point_name(point, axis): point.settings[axis[0]] for point in comparison.points}
        if len(axis) == 1 and (numbers := quantities(list(distinct.values()))) is not None:
            return axis, dict(zip(distinct, numbers, strict=True))
        varying += [axis] if len(distinct) > 1 else []
    return next(iter([*varying, *comparison.axes]), ()), {}


def grouped(comparison: "Comparison", axis: Sequence[str]) -> "dict[str, list[ComparedPoint]]":
    """The points by everything but that axis, in the order of the sweep."""
    others = [path for path in comparison.paths if path not in axis]
    groups: dict[str, list[ComparedPoint]] = {}
    for point in comparison.points:
        groups.setdefault(point_name(point, others) if others else "", []).append(point)
    return groups
