"""Advice as a page: the scaling factor over the rate of links, a curve for each change, today's point marked."""

from pathlib import Path
from typing import Final

from testbed.record.number_text import percent_text, rate_text
from testbed.record.writer import replace_text
from testbed.report.page import inlined, template
from testbed.report.plots import GREY, PALETTE, Figure, rounded
from testbed.report.terminal.advice import REACH, fusion_text, headline, price
from testbed.theory.advise import ETHERNET_BPS, Advice, Setting, curve

_POINTS_PER_DECADE: Final = 20
_NUM_DECADES: Final = 3
_FIRST_BPS: Final = 1e9


def write_advice(advice: Advice, trace: str, path: Path) -> None:
    """Write the page. Raises MissingRequirementError where that cannot be."""
    page = template("advice.html.j2").render(
        advice=advice,
        trace=trace,
        sentences=headline(advice),
        reach=REACH,
        fusion=fusion_text(advice.today),
        changes=[(change, price(change, advice.today)) for change in advice.changes],
        **inlined({"scaling": scaling_figure(advice)}),
    )
    replace_text(path, page)


def scaling_figure(advice: Advice) -> Figure:
    """The scaling factor over the links' rate, today and after each change, as plotly's JSON."""
    today = advice.today
    # The links' own change is to go along the curve of today.
    changed = [change for change in advice.changes if change.name != "links"]
    settings: list[tuple[str, Setting]] = [
        ("as it is", today),
        *((price(change, today), change.setting) for change in changed),
    ]
    rates_bps = _rates(today.rate_bps)
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [rate_bps / 1e9 for rate_bps in rates_bps],
            "y": [rounded(100 * value) for value in curve(setting, rates_bps)],
            "line": {"color": PALETTE[number % len(PALETTE)], "width": 2.5 if number == 0 else 1.5, "dash": "dash"},
            "hovertemplate": f"{name}<br>%{{x:.3g}} Gbit/s: %{{y:.3g}} %<extra></extra>",
        }
        for number, (name, setting) in enumerate(settings)
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"today, {rate_text(today.rate_bps)}",
            "x": [today.rate_bps / 1e9],
            "y": [rounded(100 * today.scaling_factor)],
            "marker": {"symbol": "circle-open", "size": 13, "color": PALETTE[0], "line": {"width": 3}},
            "hovertemplate": "today: %{y:.3g} %<extra></extra>",
        }
    )
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"target, {percent_text(advice.target)}",
            "x": [rates_bps[0] / 1e9, rates_bps[-1] / 1e9],
            "y": [100 * advice.target] * 2,
            "line": {"color": GREY, "width": 1},
            "hoverinfo": "skip",
        }
    )
    ticks = [rate_bps / 1e9 for rate_bps in ETHERNET_BPS if rates_bps[0] <= rate_bps <= rates_bps[-1]]
    return {
        "data": data,
        "layout": {
            "height": 420 + 19 * len(data),
            "xaxis": {
                "type": "log",
                "title": {"text": "rate of each worker's link, Gbit/s"},
                "tickvals": ticks,
                "ticktext": [f"{tick:g}" for tick in ticks],
            },
            "yaxis": {"title": {"text": "scaling factor, %, predicted"}, "range": [0, 102]},
        },
    }


def _rates(today_bps: float) -> list[float]:
    """From the slowest link that can be bought, or today's, over three decades."""
    first_bps = min(_FIRST_BPS, today_bps)
    steps = range(_NUM_DECADES * _POINTS_PER_DECADE + 1)
    return sorted({*(first_bps * 10 ** (step / _POINTS_PER_DECADE) for step in steps), today_bps})
