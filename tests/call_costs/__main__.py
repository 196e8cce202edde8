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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.call_costs.counters import COUNTERS
from tests.call_costs.rank import CALLS


class Cost(NamedTuple):
    """Of a call on rank 0."""

    num_counted: float
    """Of what was counted."""
    time_us: float
    """The median."""


def measured(counted: str, calls: Sequence[str], num_calls: int) -> dict[str, Cost]:
    """What each way to call takes, one after the other in the same processes."""
    said = _two_ranks(counted, ",".join(calls), str(num_calls))
    return {call: Cost(float(count), float(time_us)) for call, count, time_us in map(str.split, said.splitlines())}


def _two_ranks(*arguments: str, prefix: Sequence[str] = ()) -> str:
    """What rank 0, whose command begins with the prefix, says."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.call_costs.rank", str(Path(folder) / "store")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen([*command, "1", *arguments], env=environment) as other:
            rank_0 = [*prefix, *command, "0", *arguments]
            done = subprocess.run(rank_0, env=environment, capture_output=True, text=True, check=True, timeout=300)
            assert other.wait(60) == 0
    return done.stdout


def system_calls(call: str, num_calls: int) -> float:
    """Per call: what many take more than few, so that the start and the end do not count."""
    return (_traced(call, 2 * num_calls) - _traced(call, num_calls)) / num_calls


def _traced(call: str, num_calls: int) -> float:
    with tempfile.NamedTemporaryFile("r") as reported:
        _two_ranks("nothing", call, str(num_calls), prefix=("strace", "-f", "-c", "-o", reported.name))
        (total,) = (line.split() for line in reported.read().splitlines() if line.endswith("total"))
    return float(total[3])


def main() -> None:
    """Print a line for each way to call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    num_calls = parser.parse_args().calls
    found = {counted: measured(counted, list(CALLS), num_calls) for counted in (*COUNTERS, "nothing")}
    for call in CALLS:
        counts = {counted: found[counted][call].num_counted for counted in COUNTERS}
        if shutil.which("strace"):
            counts["system calls"] = system_calls(call, num_calls)
        words = ", ".join(f"{count:.1f} {counted}" for counted, count in counts.items())
        sys.stdout.write(f"{call}: {words}, {found['nothing'][call].time_us:.0f} us\n")


if __name__ == "__main__":
    main()
