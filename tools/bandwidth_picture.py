"""Draws the scaling factor over the rate of links: what was emulated, what models predict, what was simulated, what
the paper measured, each in a way of its own.

    python tools/bandwidth_picture.py results/claims/zhang_2020.json docs/images/bandwidth.svg

The JSON is what `testbed reproduce zhang_2020` writes (or a spec with its claims); the simulation and the prediction
for 64 workers are computed here, of the same trace.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from testbed.experiment.experiment import validate
from testbed.theory.simulation.simulate import simulate
from testbed.theory.what_if import FullRing, what_if
from testbed.traces.derived import derived_table

SPEC: Final = Path(__file__).parents[1] / "experiments" / "papers" / "zhang_2020" / "bandwidth.yaml"
RATES_GBPS: Final = (1, 10, 25, 40, 100)
SIZE: Final = (900, 470)
FRAME: Final = (70, 24, 570, 410)
"""Left, top, right, bottom of the axes."""
INK, SOFT, BLUE, RED, TEAL, AMBER = "#333333", "#9aa0a6", "#2f63a8", "#e4572e", "#2a9d8f", "#b07d0f"
Point = tuple[float, float]


class Series(NamedTuple):
    """One kind of number about one setting."""

    name: str
    kind: str
    """emulated, predicted, simulated, paper: the way it is drawn."""
    color: str
    points: Sequence[Point]
    """Gbit/s, 0 to 1."""


def all_series(claims: object) -> Iterator[Series]:
    """Of the claims' JSON and of the models."""
    assert isinstance(claims, dict)
    colors = {"4": TEAL, "8": BLUE}
    for claim in claims["claims"]:
        number = claim["name"].removeprefix("ResNet-50 among ").split(":")[0]
        if number not in colors or claim["state"] not in ("holds", "degraded", "fails"):
            continue
        points = sorted(claim["points"], key=lambda point: point["over"])
        measured = [(point["over"], point["measured"]) for point in points if point["measured"] is not None]
        yield Series(f"emulated, {number} workers", "emulated", colors[number], measured)
        yield at_full_use(int(number), colors[number])
        if claim["paper"]["points"]:
            read = [(rate, share) for rate, share in claim["paper"]["points"]]
            yield Series("paper, read off its figure 3:", "paper", RED, read)
    yield at_full_use(64, SOFT)
    yield Series("simulated (flows), 8 workers", "simulated", AMBER, [(rate, simulated(rate)) for rate in RATES_GBPS])


def at_full_use(num_workers: int, color: str) -> Series:
    """The what-if over all rates."""
    table = derived_table("resnet50")
    rates_gbps = [10 ** (exponent / 40) for exponent in range(81)]
    rings = [(rate, FullRing(num_workers=num_workers, rate_bps=rate * 1e9)) for rate in rates_gbps]
    points = [(rate, what_if(table, ring.time_s).scaling_factor) for rate, ring in rings]
    return Series(f"predicted at full use, {num_workers} workers", "predicted", color, points)


def simulated(rate_gbps: float) -> float:
    """The spec's own run with eight workers, as flows."""
    spec = yaml.safe_load(SPEC.read_text())
    base = {key: value for key, value in spec.items() if key not in ("sweep", "quick", "claims")}
    found = simulate(validate({**base, "workers": 8, "link": {"rate": f"{rate_gbps:g}gbit"}}))
    return derived_table("resnet50").compute_s / found.iteration_time_s


def place(point: Point) -> Point:
    """On the picture: rates by their logarithm."""
    left, top, right, bottom = FRAME
    low, high = math.log10(0.8), math.log10(125)
    x = left + (math.log10(point[0]) - low) / (high - low) * (right - left)
    return x, bottom - point[1] * (bottom - top)


def drawn(kind: str, color: str, points: Sequence[Point]) -> Iterator[str]:
    """In picture coordinates: filled discs, dashed lines, crosses, hollow diamonds."""
    if kind == "predicted":
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="6 4"/>'
        return
    for x, y in points:
        if kind == "emulated":
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"/>'
        elif kind == "simulated":
            yield f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{color}" stroke-width="2"/>'
        else:
            yield f'<path d="M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z" fill="none" stroke="{color}" stroke-width="2"/>'


def text(x: float, y: float, words: str, anchor: str = "start", *, more: str = "") -> str:
    """A line of it."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}" {more}>{escape(words)}</text>'


def picture(series: Sequence[Series]) -> str:
    """SVG, on white."""
    left, top, right, bottom = FRAME
    width, height = SIZE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        '<g font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        _, y = place((1, share))
        lines.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#e4e6e8"/>')
        lines.append(text(left - 8, y + 4, f"{share:.0%}", "end"))
    for rate in RATES_GBPS:
        x, _ = place((rate, 0))
        lines.append(f'<path d="M{x:.1f} {bottom}v5" stroke="{INK}"/>')
        lines.append(text(x, bottom + 20, f"{rate}", "middle"))
    lines.append(f'<path d="M{left} {bottom}H{right}" stroke="{INK}"/>')
    lines.append(text((left + right) / 2, bottom + 42, "rate of each worker's link, Gbit/s", "middle"))
    lines.append(
        text(
            0,
            0,
            "scaling factor, ResNet-50",
            "middle",
            more=f'transform="translate(18 {(top + bottom) / 2}) rotate(-90)"',
        )
    )
    ordered = sorted(series, key=lambda each: each.kind != "predicted")
    kinds = [each.kind for each in ordered]
    for number, each in enumerate(ordered):
        lines += drawn(each.kind, each.color, [place(point) for point in each.points])
        y = top + 12 + 26 * number + (18 if "paper" in kinds[:number] else 0)
        sample = [(right + 18, y), (right + 42, y)] if each.kind == "predicted" else [(right + 30, y)]
        lines += drawn(each.kind, each.color, sample)
        lines.append(text(right + 52, y + 4, each.name))
        if each.kind == "paper":
            lines.append(text(right + 52, y + 20, "measured, NCCL, 8 servers of 8 GPUs"))
    return "\n".join([*lines, "</g>", "</svg>", ""])


def main() -> None:
    """See the module's docstring."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(list(all_series(json.loads(source.read_text())))))


if __name__ == "__main__":
    main()
