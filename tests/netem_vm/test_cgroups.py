"""Limits through version 2 of control groups, for real: Debian's kernel boots with it, the machine this is written on
does not."""

import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.experiment.host import Limits
from testbed.hosts.cgroups import ProcessCgroup, available_controllers
from testbed.system.run_state import RunState, new_run_id

BURN = (
    "import os, time; start_s, used_s = time.monotonic(), time.process_time()\n"
    "while time.monotonic() < start_s + 4: pass\n"
    "print(*os.sched_getaffinity(0), time.process_time() - used_s, time.monotonic() - start_s)"
)


def test_limits_are_set_read_back_and_hold() -> None:
    found = {name: controller and controller.version for name, controller in available_controllers().items()}
    assert found == {"cpu": 2, "cpuset": 2, "memory": 2}
    with tempfile.TemporaryDirectory() as root:
        state = RunState.create(new_run_id(), root=Path(root))
        cgroup = ProcessCgroup("w0", state)
        try:
            cgroup.limit(Limits(cpu_cores=0.2, pinned_cores=(1,), memory_bytes=256 * 2**20))
            assert cgroup.differences() == []
            (procs,) = cgroup.procs_files
            argv = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), sys.executable, "-c", BURN]
            said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout
            core, cpu_s, wall_s = said.split()
            assert core == "1"
            assert float(cpu_s) < 1.25 * 0.2 * float(wall_s)  # the quota holds over periods of a tenth of a second
            throttling = cgroup.throttling()
            assert throttling is not None
            assert throttling.num_throttled > 0.5 * throttling.num_periods > 0
            assert throttling.throttled_s > 1
        finally:
            cgroup.remove()
        assert state.owned().cgroups == []
        assert not procs.parent.parent.exists()
