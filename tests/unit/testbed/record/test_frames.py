"""What an iteration consists of."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from testbed.record.frames import iteration_parts
from testbed.record.reader import Record

Make = Callable[..., Record]


def test_an_iterations_parts_have_no_gaps_and_what_forward_waits_for_is_exposed(record: Make) -> None:
    row = next(record().iterations.iter_rows(named=True))
    for stall_s in (0.0, 0.25 * (row["forward_end_s"] - row["start_s"])):
        parts = sorted(iteration_parts({**row, "forward_stall_s": stall_s}), key=lambda part: part[1])
        assert (parts[0][1], parts[-1][2]) == (row["start_s"], row["end_s"])
        assert all(before[2] == after[1] for before, after in pairwise(parts))
        inside = [end_s - begin_s for name, begin_s, end_s in parts if name == "exposed communication"]
        assert sum(inside) == pytest.approx(stall_s + row["backward_end_s"] - row["backward_compute_end_s"])
