"""Stands for `testbed run` on a machine, with nothing emulated: `cheap_run.py SPEC --output FOLDER --json ...`.

It writes a record in three moments, and before each waits while a file of its name is in the folder GATES says: `begun`
(the run has begun), `writing` (half of its record is there), `written` (the record is whole, the run has not ended).
What it was and when it lived goes to a file of its own in that folder.
"""

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from testbed.experiment.experiment import load  # noqa: E402 (found by the line above)
from testbed.record.writer import RecordWriter  # noqa: E402
from testbed.system.run_state import new_run_id  # noqa: E402
from tests.cheap_runs import describe, summary_of  # noqa: E402

GATES = Path(os.environ["XDG_DATA_HOME"])
"""What a run sees of its environment has no variable of ours."""


def main(spec: Path, output: Path) -> None:
    experiment = load(spec, [])
    life = GATES / f"life-{time.time_ns()}-{os.getpid()}"
    about = {
        "spec_sha256": experiment.sha256(),
        "environment": dict(os.environ),
        "nice": os.nice(0),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "attempt": output.parent.name,
        "slot": str(output.parents[2]),
        "pid": os.getpid(),
    }
    life.write_text(json.dumps(about))

    def passes(moment: str) -> None:
        reached = GATES / f"reached-{moment}-{about['attempt']}"
        reached.write_text(str(output.parents[2]))
        while (GATES / moment).exists():
            os.utime(life)  # it lived until then
            time.sleep(0.01)

    passes("begun")
    run_id = new_run_id()
    writer = RecordWriter(output / f"{experiment.name}-{experiment.sha256()[:8]}-{run_id}")
    writer.write_spec(experiment.to_yaml())
    writer.write_environment(describe())
    (writer.logs / "w0.log").write_bytes(os.urandom(100_000))
    passes("writing")
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    writer.finish(summary_of(experiment, "valid", run_id, now, writer.directory))
    passes("written")
    os.utime(life)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[sys.argv.index("--output") + 1]))
