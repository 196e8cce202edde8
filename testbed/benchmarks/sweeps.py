"""What the sweeps that come with the package are held to: each comes to its end within ten minutes on two cores, with
three runs of each point, every one of them valid.

Each is made as a user makes it, by its name and with nothing set, in a process and a folder of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from testbed.benchmarks.targets import Benchmarks, Row, target_row
from testbed.errors import RunFailedError
from testbed.experiment.documents import read_document
from testbed.experiment.examples import copy_example, examples
from testbed.experiment.shipped import shipped_specs

MAX_S: Final = 600.0


def benchmarks() -> Benchmarks:
    """One for each spec of the package that has a sweep, by its name."""
    names = [name for name, path in shipped_specs().items() if _sweeps(path)]
    return {name: partial(_rows, name) for name in names}


def _sweeps(path: Path) -> bool:
    document = read_document(path)
    return isinstance(document, dict) and "sweep" in document


def _rows(name: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as folder:
        for script in _scripts(name):
            copy_example(script, Path(folder))
        argv = [sys.executable, "-m", "testbed", "sweep", name, "--json", "--output", "results"]
        begun_s = time.monotonic()
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, env=_environment())
        taken_s = time.monotonic() - begun_s
    if not done.stdout.strip():
        raise RunFailedError(f"sweep {name} failed:\n{done.stderr}")
    yield from held_rows(name, json.loads(done.stdout)["points"], taken_s)


def _environment() -> dict[str, str]:
    """In which `python`, as commands name it, is the one that has torch: as where a virtual environment is active."""
    return os.environ | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    }


def held_rows(name: str, points: Sequence[Row], taken_s: float) -> Iterator[Row]:
    """Of a sweep's points, as its JSON has them: how long all took, and how many of their runs are valid, those that
    were repeated among them."""
    runs = [run for point in points for run in point["runs"]]
    outcomes = Counter(run["outcome"] for run in runs)
    facts: Row = {
        "num_points": len(points),
        "num_runs": len(runs),
        "fewest_runs_of_a_point": min(len(point["runs"]) for point in points),
        "outcomes": dict(outcomes),
        "reasons": [
            f"{json.dumps(point['settings'])}, {run['outcome']}: {'; '.join(run['reasons'])}"
            for point in points
            for run in point["runs"]
            if run["outcome"] != "valid"
        ],
    }
    yield target_row(f"sweep {name}, {len(points)} points: minutes", taken_s / 60, MAX_S / 60, facts)
    wanted = sum(max(point["num_requested"], len(point["runs"])) for point in points)
    share = outcomes["valid"] / wanted
    yield target_row(f"sweep {name}, {wanted} runs: share of them valid", share, 1.0, facts, at_least=True)


def _scripts(name: str) -> list[str]:
    """Scripts of the package that the spec's command names."""
    argv = read_document(shipped_specs()[name]).get("workload", {}).get("argv", [])
    return [each.name for each in examples() if each.name in argv]
