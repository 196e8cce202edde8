"""A figure for each claim: the model dashed or as strokes, what was emulated as filled marks, hollow ones where it
stands with a reservation, the paper's as hollow diamonds."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from testbed.claims.judge import Judgement, PointValue
from testbed.claims.wording import formula_text, formula_unit, is_time
from testbed.experiment.claims import PaperSays
from testbed.report.figures import AMBER, BLUE, GREY, PALETTE, RED, Axis, Figure, Line, Marks, Number, Series, rounded

_WIDE: Final = 20
"""Places that are so many times apart lie on a logarithmic axis."""


def claims_figures(judgements: Sequence[Judgement]) -> dict[str, Figure]:
    """Every figure of a page of claims, by name: `claim-<number>`, and `together`."""
    figures = {
        f"claim-{number}": figure
        for number, judgement in enumerate(judgements)
        if (figure := claim_figure(judgement)) is not None
    }
    if (joint := joint_figure(judgements)) is not None:
        figures["together"] = joint
    return figures


def claim_figure(judgement: Judgement) -> Figure | None:
    """A claim's figure; None where there is nothing to draw."""
    points = [point for point in judgement.points if point.measured is not None]
    if not points:
        return None
    numbers = [point.over for point in points if point.over is not None]
    numeric = len(numbers) == len(points)
    placed = sorted(zip(numbers, points, strict=True), key=lambda pair: pair[0]) if numeric else list(enumerate(points))
    places = [float(place) for place, _ in placed]
    claim = judgement.claim
    scale, unit = _scale([point.measured or 0 for point in points], formula_unit(claim))
    measured = [_scaled(point.measured, scale) for _, point in placed]
    modelled = [_scaled(point.model, scale) for _, point in placed]
    series: list[Series] = []
    if claim.model is not None:
        series.append(_model("model", GREY, places, modelled, one_curve=numeric, readout=False))
    texts = [
        "\n".join([point.text, _emulated_text(point, value, unit), *_model_text(model, unit)])
        for (_, point), value, model in zip(placed, measured, modelled, strict=True)
        if value is not None
    ]
    color = BLUE if judgement.holds else AMBER if judgement.state == "not judged" else RED
    hollow = _hollow([point for _, point in placed])
    series.append(Marks(name="emulated", color=color, x=places, y=measured, hover=texts, hollow=hollow))
    if numeric and claim.paper is not None:
        series += _read_off(claim.paper, "paper", color, scale)
    over = next(iter(claim.take.formulas()), None)
    ticks = {float(place): point.text.replace(" ", "\n") for place, point in placed}
    return Figure(
        title=claim.name,
        height=230,
        x=Axis(title=formula_text(over or ""), whole=over == "W")
        if numeric
        else Axis(ticks=ticks, categories=True, grid=False),
        y=Axis(title=formula_text(claim.of, unit), zero=True),
        series=series,
    )


def _model(
    name: str,
    color: str,
    places: Sequence[float],
    values: Sequence[Number],
    *,
    one_curve: bool = True,
    readout: bool = True,
) -> Line | Marks:
    """A dashed line; strokes where there are no places in an order, or several points at one: these are of several
    curves, which a line would join."""
    if one_curve and len(set(places)) == len(places):
        return Line(name=name, color=color, x=places, y=values, dash="dash", readout=readout)
    return Marks(name=name, color=color, x=places, y=values, shape="stroke", size=26, hollow=True)


def _emulated_text(point: PointValue, value: float, unit: str) -> str:
    return f"emulated {value:.4g}{f' {unit}' if unit else ''}{_reserved(point)}"


def _reserved(point: PointValue) -> str:
    return f" ({point.reservation})" if point.reservation else ""


def _hollow(points: Sequence[PointValue]) -> list[bool] | bool:
    """Those whose numbers stand with a reservation."""
    each = [bool(point.reservation) for point in points]
    return each if any(each) else False


def _model_text(value: Number, unit: str) -> list[str]:
    return [] if value is None else [f"model {value:.4g}{f' {unit}' if unit else ''}"]


def joint_figure(judgements: Sequence[Judgement]) -> Figure | None:
    """Claims that look at the same over the same axis, in one picture: each in its colour, what was emulated as filled
    marks, the model as a dashed line (or strokes), what was read off the paper's figure as hollow marks. Of the largest
    such group, first of those with points of the paper's; None where no two do."""
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for judgement in judgements:
        over = next(iter(judgement.claim.take.formulas()), None)
        measured = any(point.measured is not None for point in judgement.points)
        if over is not None and judgement.claim.model is not None and measured:
            groups.setdefault((judgement.claim.of, over), []).append(judgement)
    joint = [item for item in groups.items() if len(item[1]) > 1]
    if not joint:
        return None
    (looked_at, over), group = max(joint, key=lambda item: (any(map(_has_points, item[1])), len(item[1])))
    names = [judgement.claim.name for judgement in group]
    short = [name.partition(":")[0] for name in names]
    colored = zip(group, short if len(set(short)) == len(short) else names, itertools.cycle(PALETTE[:-1]))
    series = [each for judgement, name, color in colored for each in _series(judgement, name, color)]
    places = sorted({place for each in series for place in each.x})
    wide = min(places) > 0 and max(places) / min(places) >= _WIDE
    ticks = {place: f"{place:g}" for place in places} if wide else {}
    axis = Axis(title=formula_text(over), log=wide, ticks=ticks, whole=over == "W")
    title = formula_text(looked_at)
    return Figure(title=title, height=320, x=axis, y=Axis(title=title, zero=True), series=series)


def _series(judgement: Judgement, name: str, color: str) -> Iterator[Line | Marks]:
    """Three kinds that are never drawn alike."""
    known = sorted((point for point in judgement.points if point.over is not None), key=lambda point: point.over or 0)
    places = [point.over or 0.0 for point in known]
    model = [_scaled(point.model, 1.0) for point in known]
    emulated = [_scaled(point.measured, 1.0) for point in known]
    yield _model(f"{name}, model", color, places, model)
    texts = [
        "" if value is None else f"{name}, emulated{_reserved(point)}\n{point.text}\n{value:.4g}"
        for point, value in zip(known, emulated, strict=True)
    ]
    yield Marks(name=f"{name}, emulated", color=color, x=places, y=emulated, hover=texts, hollow=_hollow(known))
    if judgement.claim.paper is not None:
        yield from _read_off(judgement.claim.paper, f"{name}, paper", color, 1.0)


def _has_points(judgement: Judgement) -> bool:
    return judgement.claim.paper is not None and bool(judgement.claim.paper.points)


def _read_off(paper: PaperSays, name: str, color: str, scale: float) -> Iterator[Marks]:
    """What was read off the paper's figure, if anything was."""
    if not paper.points:
        return
    named = f"{name}: {paper.points_are} [{paper.evidence}]"
    read = [_scaled(value, scale) for _, value in paper.points]
    yield Marks(
        name=named,
        color=color,
        x=[float(place) for place, _ in paper.points],
        y=read,
        shape="diamond",
        hollow=True,
        size=10,
        hover=["" if value is None else f"{named}\n{value:.4g}" for value in read],
    )


def _scaled(value: Number, scale: float) -> Number:
    return None if value is None else rounded(value * scale)


def _scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Seconds are drawn in milliseconds where they are short, shares in percent."""
    if unit == "%":
        return 100.0, unit
    if not is_time(unit):
        return 1.0, unit
    return (1e3, "ms") if max(values, default=0) < 1 else (1.0, "s")
