"""A figure for each claim: the model as a line, what was emulated as marks, what the paper says as a star."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from testbed.claims.judge import Judgement
from testbed.report.plots import BLUE, GREY, PALETTE, RED, Figure, rounded


def claim_figure(judgement: Judgement) -> Figure | None:
    """A claim's figure as plotly's JSON; None where there is nothing to draw."""
    points = [point for point in judgement.points if point.measured is not None]
    if not points:
        return None
    places: Sequence[Any] = [point.text if point.over is None else point.over for point in points]
    numeric = all(point.over is not None for point in points)
    order = sorted(range(len(points)), key=lambda index: places[index]) if numeric else list(range(len(points)))
    scale, unit = _scale([point.measured or 0 for point in points], judgement.claim.unit)
    data: list[Figure] = []
    if judgement.claim.model is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines" if numeric else "markers",
                "name": "model",
                "x": [places[index] for index in order],
                "y": [_scaled(points[index].model, scale) for index in order],
                "line": {"color": GREY, "dash": "dash", "width": 1.5},
                "marker": {"color": GREY, "symbol": "line-ew-open", "size": 18, "line": {"width": 2}},
            }
        )
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "emulated",
            "x": [places[index] for index in order],
            "y": [_scaled(points[index].measured, scale) for index in order],
            "marker": {"color": BLUE if judgement.holds else RED, "size": 9},
        }
    )
    over = next(iter(judgement.claim.take.formulas()), None)
    return {
        "data": data,
        "layout": {
            "height": 300,
            "xaxis": {"title": {"text": over}} if numeric else {"type": "category"},
            "yaxis": {"title": {"text": f"{judgement.claim.of}{f', {unit}' if unit else ''}"}, "rangemode": "tozero"},
        },
    }


def joint_figure(judgements: Sequence[Judgement]) -> Figure | None:
    """Claims that look at the same over the same axis, in one picture: each in its colour, what was emulated as filled
    marks, the model as a dashed line, what was read off the paper's figure as hollow marks. Of the largest such group;
    None where no two do."""
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for judgement in judgements:
        over = next(iter(judgement.claim.take.formulas()), None)
        if over is not None and judgement.claim.model is not None and judgement.measured is not None:
            groups.setdefault((judgement.claim.of, over), []).append(judgement)
    if not groups:
        return None
    (looked_at, over), group = max(groups.items(), key=lambda item: len(item[1]))
    if len(group) < 2:
        return None
    data = [
        series for judgement, color in zip(group, itertools.cycle(PALETTE[:-1])) for series in _series(judgement, color)
    ]
    places = [place for series in data for place in series["x"]]
    wide = min(places) > 0 and max(places) / min(places) >= _WIDE
    return {
        "data": data,
        "layout": {
            "height": 420,
            "xaxis": {"title": {"text": over}, **({"type": "log", "tickvals": sorted(set(places))} if wide else {})},
            "yaxis": {"title": {"text": looked_at}, "rangemode": "tozero"},
        },
    }


def _series(judgement: Judgement, color: str) -> Iterator[Figure]:
    """Three kinds that are never drawn alike."""
    known = sorted((point for point in judgement.points if point.over is not None), key=lambda point: point.over or 0)
    name, _, _ = judgement.claim.name.partition(":")
    kinds: list[tuple[str, list[float | None], dict[str, Any]]] = [
        ("model", [point.model for point in known], {"mode": "lines", "line": {"color": color, "dash": "dash"}}),
        ("emulated", [point.measured for point in known], {"mode": "markers", "marker": {"color": color, "size": 9}}),
    ]
    for kind, values, style in kinds:
        places = [point.over for point in known]
        rounded_values = [_scaled(value, 1.0) for value in values]
        yield {"type": "scatter", "name": f"{name}, {kind}", "x": places, "y": rounded_values, **style}
    paper = judgement.claim.paper
    if paper is not None and paper.points:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": f"{name}, paper: {paper.points_are} [{paper.evidence}]",
            "x": [place for place, _ in paper.points],
            "y": [value for _, value in paper.points],
            "marker": {"color": color, "symbol": "diamond-open", "size": 10, "line": {"width": 2}},
        }


_WIDE: Final = 20
"""Places that are so many times apart lie on a logarithmic axis."""


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else rounded(value * scale)


def _scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Seconds are drawn in milliseconds where they are short, shares in percent."""
    if unit == "%":
        return 100.0, unit
    if unit.startswith("s") and max(values, default=0) < 1:
        return 1e3, "ms"
    return 1.0, "s" if unit.startswith("s") else unit
