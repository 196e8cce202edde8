"""`make test-programs`: random programs on gloo and on testbed, equal results or the smallest program that has not.

python -m tests.random_programs --programs 2000 [--seed 1]
"""

import argparse
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.random_programs.compared import compare
from tests.random_programs.programs import Program, programs
from tests.random_programs.ranks import Worlds


def main() -> None:
    """Raises what the first program that fails raises, which hypothesis has made small and printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun_s = time.monotonic()
    num_operations = 0
    with Worlds() as worlds:

        @seed(options.seed)
        @settings(
            max_examples=options.programs,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(programs())
        def run(program: Program) -> None:
            nonlocal num_operations
            num_operations += len(program.operations)
            compare(worlds, program)

        run()
    took_s = time.monotonic() - begun_s
    sys.stdout.write(f"{options.programs} programs, {num_operations} operations: equal, in {took_s:.0f} s\n")


if __name__ == "__main__":
    main()
