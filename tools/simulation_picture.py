"""Draws what a simulation costs over the number of workers.

    testbed bench simulation --only cost --json > cost.json
    python tools/simulation_picture.py cost.json docs/images/simulation_cost.svg

Seconds are those of the whole command, with its start.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from testbed.report.drawing import svg
from testbed.report.figures import AMBER, BLUE, TEAL, Axis, Figure, Line, Marks

COLORS: Final = {"ring": BLUE, "hierarchical": TEAL, "in_network, at: tree": AMBER}
_WIDTH: Final = 900


def picture(rows: list[dict[str, Any]]) -> Figure:
    """Seconds of the command, measured; both axes are logarithmic."""
    series: list[Line | Marks] = []
    numbers: set[int] = set()
    for name, color in COLORS.items():
        points = [(row["num_workers"], row["wall_s"]) for row in rows if row.get("collective") == name]
        workers, seconds = [float(count) for count, _ in points], [each for _, each in points]
        numbers |= {count for count, _ in points}
        series.append(Line(name=name, color=color, x=workers, y=seconds, width=2))
        series.append(Marks(name=name, color=color, x=workers, y=seconds, size=9))
    return Figure(
        title="What `testbed simulate` takes over the number of workers",
        height=300,
        x=Axis(title="workers on a fat tree", log=True, ticks={float(each): f"{each:,}" for each in sorted(numbers)}),
        y=Axis(
            title="seconds, with its start",
            log=True,
            ticks={float(each): f"{each:g}" for each in (0.5, 1, 2, 5, 10, 30)},
        ),
        series=series,
    )


def main() -> None:
    """See the module's docstring."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(svg(picture(json.loads(source.read_text())["rows"]), width=_WIDTH))


if __name__ == "__main__":
    main()
