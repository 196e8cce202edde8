"""Records of modelled runs that `testbed compare` takes, for tests of how differences look."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.unit.testbed.conftest import Scenario, make_record


def modelled_runs(directory: Path, settings: Sequence[tuple[str, float]], *, repeat: int, **changes: Any) -> list[Path]:
    """Of each setting, a collective and its links' rate in bit/s, so many runs made in turns; `changes` of all their
    summaries."""
    made = []
    for number in range(repeat * len(settings)):
        collective, rate_bps = settings[number % len(settings)]
        wobble = 1 + 0.002 * (number * 7 % 5 - 2)
        path = directory / f"run-{number:02d}"
        made.append(path)
        make_record(path, Scenario(num_iterations=12, rate_bps=rate_bps, compute_s=0.11 * wobble, seed=number))
        spec = yaml.safe_load((path / "spec.yaml").read_text())
        spec |= {"collective": {"kind": collective}, "workload": {"kind": "training"}}
        (path / "spec.yaml").write_text(yaml.safe_dump(spec))
        summary = json.loads((path / "summary.json").read_text())
        summary |= {"run_id": f"r{number:02d}", "started_at": f"2026-01-01T00:{number:02d}:00"}
        summary |= {"spec_sha256": f"{settings.index((collective, rate_bps)):02d}" * 32, **changes}
        (path / "summary.json").write_text(json.dumps(summary))
        environment = json.loads((path / "environment.json").read_text())
        environment |= {"commit": "c", "cpu": "any", "num_cores": 2, "python": "3.11", "packages": {}}
        (path / "environment.json").write_text(json.dumps(environment))
    return made
