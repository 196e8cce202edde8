"""A sweep of cheap runs over a Ray cluster, as a process of its own: `cheap_sweep.py ADDRESS OUTPUT SPEC`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402 (the line above finds what follows)

from testbed.experiment.sweep import expand  # noqa: E402
from testbed.runner.engines._cluster import connected  # noqa: E402
from testbed.runner.engines._lease import Timing  # noqa: E402
from testbed.runner.engines._machines import Machines  # noqa: E402
from testbed.runner.engines.base import Executor, Session  # noqa: E402
from testbed.runner.engines.ray import Ray  # noqa: E402
from testbed.runner.sweep import run_sweep  # noqa: E402
from testbed.runner.sweep_points import found, plan_points  # noqa: E402
from tests.cheap_runs import CheapRuns  # noqa: E402

TIMING: Final = Timing(lease_s=6.0, grace_s=2.0, margin_s=2.0, poll_s=0.1)
PROGRAM: Final = (sys.executable, "-P", str(ROOT / "tests" / "many_machines" / "cheap_run.py"))


class CheapRay(Ray):
    """The engine with runs that emulate nothing, and little patience."""

    over_s: ClassVar[float] = TIMING.over_s

    @contextmanager
    def open(self, session: Session) -> Iterator[Executor]:
        with (
            connected(self.address) as ray,
            Machines(ray, session, timing=TIMING, program=PROGRAM) as machines,
        ):
            yield machines


def main(address: str, output: Path, spec: str) -> None:
    sweep = expand(json.loads(spec))
    plans = plan_points(sweep)
    run_sweep(
        found(sweep, plans, output=output),
        plans,
        run=CheapRuns(output),
        console=Console(width=200),
        engine=CheapRay(address=address),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
