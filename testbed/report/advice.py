"""Advice as a page: the scaling factor over the rate of links, a curve for each change, today's point marked."""

from pathlib import Path
from typing import Final

from testbed.record.number_text import percent_text, rate_text
from testbed.record.writer import replace_text
from testbed.report.drawing import write_pictures
from testbed.report.figures import GREY, PALETTE, Axis, Figure, Line, Marks, Series, rounded
from testbed.report.page import inlined, require_page_name, template
from testbed.report.terminal.advice import (
    REACH,
    basis,
    compressors_text,
    computing_text,
    fusion_text,
    headline,
    price,
    share_decimals,
)
from testbed.theory.advise import ETHERNET_BPS, Advice, Setting, curve

_POINTS_PER_DECADE: Final = 20
_NUM_DECADES: Final = 3
_FIRST_BPS: Final = 1e9


def write_advice(advice: Advice, trace: str, source: str, path: Path) -> None:
    """Write the page, and its figure beside it; `source` says where the trace's times are from. Raises
    MissingRequirementError where that cannot be."""
    require_page_name(path)
    figures = {"scaling": scaling_figure(advice)}
    page = template("advice.html.j2").render(
        advice=advice,
        trace=trace,
        sentences=headline(advice),
        reach=REACH,
        basis=basis(advice.today.table, source),
        computing=computing_text(advice.today),
        fusion=fusion_text(advice.today),
        compressors=compressors_text(advice),
        decimals=share_decimals(advice),
        changes=[(change, price(change, advice.today)) for change in advice.changes],
        **inlined(figures),
    )
    replace_text(path, page)
    write_pictures(path, figures, is_ours=figures.__contains__)


def scaling_figure(advice: Advice) -> Figure:
    """The scaling factor over the links' rate, today and after each change, as a figure."""
    today = advice.today
    # The links' own change is to go along the curve of today.
    changed = [change for change in advice.changes if change.name != "links"]
    settings: list[tuple[str, Setting]] = [
        ("as it is", today),
        *((price(change, today), change.setting) for change in changed),
    ]
    rates_bps = _rates(today.rate_bps)
    places = [rounded(rate_bps / 1e9) for rate_bps in rates_bps]
    series: list[Series] = [
        Line(
            name=name,
            color=PALETTE[number % len(PALETTE)],
            x=places,
            y=[rounded(100 * value) for value in curve(setting, rates_bps)],
            dash="dash",
            width=2.5 if number == 0 else 1.5,
        )
        for number, (name, setting) in enumerate(settings)
    ]
    series.append(
        Marks(
            name=f"today, {rate_text(today.rate_bps)}",
            color=PALETTE[0],
            x=[rounded(today.rate_bps / 1e9)],
            y=[rounded(100 * today.scaling_factor)],
            size=13,
            hollow=True,
            hover=[f"today: {100 * today.scaling_factor:.3g} %"],
        )
    )
    target = f"target, {percent_text(advice.target, share_decimals(advice))}"
    series.append(
        Line(name=target, color=GREY, x=[places[0], places[-1]], y=[100 * advice.target] * 2, width=1, readout=False)
    )
    ticks = [rate_bps / 1e9 for rate_bps in ETHERNET_BPS if rates_bps[0] <= rate_bps <= rates_bps[-1]]
    return Figure(
        title="Scaling factor over the rate of links, predicted",
        height=380,
        x=Axis(title="rate of each worker's link, Gbit/s", log=True, ticks={tick: f"{tick:g}" for tick in ticks}),
        y=Axis(title="scaling factor, %, predicted", ends=(0, 102)),
        series=series,
    )


def _rates(today_bps: float) -> list[float]:
    """From the slowest link that can be bought, or today's, over three decades."""
    first_bps = min(_FIRST_BPS, today_bps)
    steps = range(_NUM_DECADES * _POINTS_PER_DECADE + 1)
    return sorted({*(first_bps * 10 ** (step / _POINTS_PER_DECADE) for step in steps), today_bps})
