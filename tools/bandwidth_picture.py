"""Draws the scaling factor over the rate of links: what was emulated, what models predict, what was simulated, what
the paper measured, each in a way of its own.

    python tools/bandwidth_picture.py results/claims/zhang_2020.json docs/images/bandwidth.svg

The JSON is what `testbed reproduce zhang_2020` writes (or a spec with its claims); the simulation and the prediction
for 64 workers are computed here, of the same trace.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from testbed.experiment.experiment import Experiment, validate
from testbed.report.drawing import svg
from testbed.report.figures import AMBER, BLUE, GREY, RED, TEAL, Axis, Figure, Line, Marks, Shape
from testbed.theory.simulation.simulate import simulate
from testbed.theory.what_if import FullRing, what_if
from testbed.traces.table import LayerTable

SPEC: Final = Path(__file__).parents[1] / "experiments" / "papers" / "zhang_2020" / "bandwidth.yaml"
RATES_GBPS: Final = (1, 10, 25, 40, 100)
_WIDTH: Final = 900


def all_series(claims: object) -> Iterator[Line | Marks]:
    """Of the claims' JSON and of the models."""
    assert isinstance(claims, dict)
    colors = {"4": TEAL, "8": BLUE}
    for claim in claims["claims"]:
        number = claim["name"].removeprefix("ResNet-50 among ").split(":")[0]
        if number not in colors or claim["state"] not in ("holds", "degraded", "fails"):
            continue
        points = sorted(claim["points"], key=lambda point: point["over"])
        measured = [(point["over"], point["measured"]) for point in points if point["measured"] is not None]
        yield marks(f"emulated, {number} workers", colors[number], measured)
        yield at_full_use(int(number), colors[number])
        if claim["paper"]["points"]:
            read = [(rate, share) for rate, share in claim["paper"]["points"]]
            yield marks("paper, its figure 3: NCCL, 8 servers of 8 GPUs", RED, read, shape="diamond", hollow=True)
    yield at_full_use(64, GREY)
    rates = [(rate, simulated(rate)) for rate in RATES_GBPS]
    yield marks("simulated (flows), 8 workers", AMBER, rates, shape="square", hollow=True)


def marks(
    name: str, color: str, points: Sequence[tuple[float, float]], *, shape: Shape = "circle", hollow: bool = False
) -> Marks:
    """Gbit/s, and shares from 0 to 1."""
    rates, shares = [rate for rate, _ in points], [100 * share for _, share in points]
    return Marks(name=name, color=color, x=rates, y=shares, shape=shape, hollow=hollow, size=11)


def at_full_use(num_workers: int, color: str) -> Line:
    """The what-if over all rates."""
    table = layers()
    rates_gbps = [10 ** (exponent / 40) for exponent in range(81)]
    rings = [(rate, FullRing(num_workers=num_workers, rate_bps=rate * 1e9)) for rate in rates_gbps]
    shares = [100 * what_if(table, ring.time_s).scaling_factor for _, ring in rings]
    name = f"predicted at full use, {num_workers} workers"
    return Line(name=name, color=color, x=rates_gbps, y=shares, dash="dash", width=2)


def simulated(rate_gbps: float) -> float:
    """The spec's own run with eight workers, as flows."""
    found = simulate(planned(workers=8, link={"rate": f"{rate_gbps:g}gbit"}))
    return layers().compute_s / found.iteration_time_s


def planned(**keys: Any) -> Experiment:
    """The spec's run of ResNet-50."""
    spec = yaml.safe_load(SPEC.read_text())
    base = {key: value for key, value in spec.items() if key not in ("sweep", "quick", "claims")}
    updates = dict(spec["sweep"]["workload.trace, workload.update"])
    workload = {**base["workload"], "trace": "resnet50", "update": updates["resnet50"]}
    return validate({**base, "workload": workload, **keys})


@cache
def layers() -> LayerTable:
    """What it computes."""
    table = planned().workload.timed_layers()
    assert table is not None, "it is a replay of a table"
    return table


def picture(series: Sequence[Line | Marks]) -> Figure:
    """Lines below marks."""
    return Figure(
        title="Scaling factor of ResNet-50 over the rate of links",
        height=330,
        x=Axis(
            title="rate of each worker's link, Gbit/s",
            log=True,
            ticks={float(rate): f"{rate}" for rate in RATES_GBPS},
            ends=(0.8, 125),
        ),
        y=Axis(title="scaling factor, ResNet-50", suffix=" %", ends=(0, 105)),
        series=sorted(series, key=lambda each: isinstance(each, Marks)),
    )


def main() -> None:
    """See the module's docstring."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(svg(picture(list(all_series(json.loads(source.read_text())))), width=_WIDTH))


if __name__ == "__main__":
    main()
