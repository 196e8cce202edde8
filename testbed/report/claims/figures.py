"""A figure for each claim: the model as a line, what was emulated as marks, what the paper says as a star."""

from collections.abc import Sequence
from typing import Any

from testbed.claims.judge import Judgement
from testbed.report.plots import BLUE, GREY, RED, Figure, rounded


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


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else rounded(value * scale)


def _scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Seconds are drawn in milliseconds where they are short."""
    if unit.startswith("s") and max(values, default=0) < 1:
        return 1e3, "ms"
    return 1.0, "s" if unit.startswith("s") else unit
