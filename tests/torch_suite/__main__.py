"""`make test-torch`: torch's own distributed tests on gloo and testbed side by side, against what is listed."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed

from tests.torch_suite.cases import BACKENDS, Backend, Result, run_suite
from tests.torch_suite.differences import expected, not_passed, sample, table, unexpected


def main() -> int:
    """0 when what differs is what is listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tests", nargs="+", help="names of tests (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    parser.add_argument("--sample", action="store_true", help="those of sample.json, on testbed, which must all pass")
    parser.add_argument("--table", type=Path, help="where to write the table (default: standard output)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    backends: Sequence[Backend] = ("testbed",) if options.sample else BACKENDS
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.world_sizes:
            tests = sample(size) if options.sample else options.tests
            results += run_suite(size, backends, Path(folder), tests=tests, num_jobs=options.jobs)
    if unknown := set(options.tests or ()) - {result.test for result in results}:
        parser.error(f"no such tests at these world sizes: {', '.join(sorted(unknown))}")
    if options.sample:
        return _report(results, not_passed(results))
    written = table(results, expected())
    if options.table is None:
        sys.stdout.write(written)
    else:
        options.table.write_text(written)
    return _report(results, unexpected(results, expected()))


def _report(results: Sequence[Result], complaints: Sequence[str]) -> int:
    for complaint in complaints:
        sys.stderr.write(complaint + "\n")
    sys.stderr.write(f"{len(results)} results, {len(complaints)} not as expected\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
