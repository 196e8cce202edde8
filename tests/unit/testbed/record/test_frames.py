"""What an iteration consists of."""

from collections.abc import Callable
from itertools import pairwise

import polars as pl
import pytest

from testbed.record.frames import iteration_parts, last_ready_s
from testbed.record.reader import Record

Make = Callable[..., Record]


def test_an_iterations_parts_have_no_gaps_and_what_forward_waits_for_is_exposed(record: Make) -> None:
    row = next(record().iterations.iter_rows(named=True))
    ready_s, reduced_s = row["backward_compute_end_s"], row["backward_end_s"] + 1.0
    row |= {"backward_end_s": reduced_s, "optimizer_end_s": reduced_s + 0.1, "end_s": reduced_s + 0.2}
    for stall_s in (0.0, 0.25 * (row["forward_end_s"] - row["start_s"])):
        for last_s, waited_s in ((ready_s, 0.0), (ready_s + 0.5, 0.5), (reduced_s + 9, reduced_s - ready_s)):
            stalled = {**row, "forward_stall_s": stall_s}
            parts = iteration_parts(stalled, last_s=last_s, before_s=row["start_s"])
            assert (parts[0][1], parts[-1][2]) == (row["start_s"], row["end_s"])
            assert all(before[2] == after[1] for before, after in pairwise(parts))
            exposed = [end_s - begin_s for name, begin_s, end_s in parts if name == "exposed communication"]
            assert sum(exposed) == pytest.approx(stall_s + reduced_s - ready_s - waited_s)
            waited = [end_s - begin_s for name, begin_s, end_s in parts if name == "waiting for slower workers"]
            assert sum(waited) == pytest.approx(waited_s)


def test_what_forward_waits_until_the_last_workers_last_gradient_before_is_waiting(record: Make) -> None:
    row = next(record().iterations.iter_rows(named=True))
    copied_s, stall_s = row["host_to_device_end_s"], 0.5 * (row["forward_end_s"] - row["host_to_device_end_s"])
    for until, early in ((-1.0, 0.0), (0.25, 0.25), (9.0, 1.0)):
        before_s = copied_s + until * stall_s
        parts = iteration_parts(
            {**row, "forward_stall_s": stall_s}, last_s=row["backward_compute_end_s"], before_s=before_s
        )
        assert all(before[2] == after[1] for before, after in pairwise(parts))
        waited_s = [end_s - begin_s for name, begin_s, end_s in parts if name == "waiting for slower workers"]
        assert sum(waited_s) == pytest.approx(early * stall_s)


def test_workers_that_wait_for_each_other_know_when_the_last_was_ready(record: Make) -> None:
    iterations = record(num_iterations=2).iterations
    measured = last_ready_s(iterations, ends_together=True).filter(pl.col("phase") == "measured")
    for _, rows in measured.group_by("index"):
        assert set(rows["last_s"]) == {rows["backward_compute_end_s"].max()}
    first, second = measured.filter(pl.col("index") == 0), measured.filter(pl.col("index") == 1)
    assert first["before_s"].to_list() == first["host_to_device_end_s"].to_list(), "the phase has none before it"
    assert set(second["before_s"]) == set(first["last_s"])
    alone = last_ready_s(iterations, ends_together=True).filter(pl.col("phase") == "compute_alone")
    assert alone["last_s"].equals(alone["backward_compute_end_s"].rename("last_s"))
    apart = last_ready_s(iterations, ends_together=False)
    assert apart["last_s"].equals(apart["backward_compute_end_s"].rename("last_s"))
