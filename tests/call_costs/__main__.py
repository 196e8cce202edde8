"""What an all-reduce of 4 bytes between two ranks costs beside its messages, on one of them, per call.

python -m tests.call_costs [--calls 1000]

    allocations     objects requested of Python's allocator (what free lists give is not counted)
    locks           locks of `threading` taken, by whatever thread
    calls           functions of Python called
    system calls    by `strace -c`, where it is installed
    time            the median, with nothing counted, in microseconds
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.call_costs.counters import COUNTERS
from tests.call_costs.rank import CALLS


def measured(counted: str, call: str, num_calls: int) -> tuple[float, float]:
    """What of it a call takes on rank 0, and the median time of a call in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        store, reported = str(Path(folder) / "store"), Path(folder) / "strace"
        command = [sys.executable, "-m", "tests.call_costs.rank", store]
        traced = ["strace", "-f", "-c", "-o", str(reported)] if counted == "system calls" else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        rest = (counted, call, str(num_calls))
        with subprocess.Popen([*command, "1", *rest], env=environment) as other:
            done = subprocess.run(
                [*traced, *command, "0", *rest],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            )
            assert other.wait(60) == 0
        count, time_us = map(float, done.stdout.split())
        if traced:
            (total,) = (line.split() for line in reported.read_text().splitlines() if line.endswith("total"))
            count = float(total[3])
        return count, time_us


def system_calls(call: str, num_calls: int) -> float:
    """Per call: what many take more than few, so that the start and the end do not count."""
    many, _ = measured("system calls", call, 2 * num_calls)
    few, _ = measured("system calls", call, num_calls)
    return (many - few) / num_calls


def main() -> None:
    """Print a line for each way to call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    num_calls = parser.parse_args().calls
    for call in CALLS:
        counts = {counted: measured(counted, call, num_calls)[0] for counted in COUNTERS}
        if shutil.which("strace"):
            counts["system calls"] = system_calls(call, num_calls)
        _, time_us = measured("nothing", call, num_calls)
        words = ", ".join(f"{count:.1f} {counted}" for counted, count in counts.items())
        sys.stdout.write(f"{call}: {words}, {time_us:.0f} us\n")


if __name__ == "__main__":
    main()
