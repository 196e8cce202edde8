"""The parts of an iteration, calculated manually, and that they add up however workers drift apart."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.families import ITERATION_PART_NAMES
from testbed.record.reader import Record
from testbed.verdict.parts import PARTS, PartsMeanwhile, by_rounds, per_iteration, worker_parts
from tests.rows import iteration, iterations


def of(rows: pl.DataFrame, **changes: object) -> dict[str, float]:
    (row,) = per_iteration(rows, num_workers=2, dilation=1.0, **changes).iter_rows(named=True)  # type: ignore[arg-type]
    return row


def test_an_iteration_ends_where_the_next_one_begins() -> None:
    rows = iterations(*(iteration(rank, 10.0 * index, index=index) for rank in range(2) for index in range(3)))
    first, _, last = per_iteration(rows, num_workers=2, dilation=2.0).iter_rows(named=True)
    assert first["time_s"] == pytest.approx(10.0 / 2), "with the 3.25 s in which nothing was said to happen"
    assert first["other_s"] == pytest.approx(3.5 / 2)
    assert last["time_s"] == pytest.approx(6.75 / 2), "to its own end"


def test_a_worker_that_began_late_is_not_slower_for_it() -> None:
    skewed = of(iterations(iteration(0, 10.0), iteration(1, 14.0, backward_end_s=17.5)))
    assert skewed["time_s"] == pytest.approx(6.75)
    assert skewed["start_s"] == 10.0
    # The first has its last gradient at 13 s, the second at 17 s; the first has its result at 16 s, as rows go.
    assert skewed["waiting_s"] == pytest.approx(3.0 / 2)


def test_exposed_begins_when_the_last_workers_last_gradient_is_ready() -> None:
    row = of(iterations(iteration(0, 10.0), iteration(1, 10.0, forward_end_s=12.0, backward_compute_end_s=15.0)))
    assert row["waiting_s"] == pytest.approx((2.0 + 0.0) / 2)
    assert row["exposed_s"] == pytest.approx(1.0)
    assert row["compute_s"] == pytest.approx((2.75 + 4.75) / 2)


def test_workers_that_never_wait_for_each_other_do_not_wait() -> None:
    row = of(iterations(iteration(0, 10.0), iteration(1, 12.0)), ends_together=False)
    assert (row["waiting_s"], row["exposed_s"]) == (0, pytest.approx(3.0))


def test_waiting_in_the_next_forward_pass_is_exposed_communication_but_for_what_a_slower_worker_took() -> None:
    first = [iteration(0, 0.0), iteration(1, 0.0)]
    alone = of(iterations(*({**row, "forward_stall_s": 0.5} for row in first)))
    assert alone["compute_s"] == pytest.approx(2.75 - 0.5)
    assert alone["exposed_s"] == pytest.approx(3.0 + 0.5)
    # The second worker's last gradient came 0.3 s after the first's next iteration had its batch.
    trails = {"backward_end_s": 3.0, "optimizer_end_s": 3.1, "end_s": 3.2}
    slow = {"backward_compute_end_s": 3.8, "backward_end_s": 3.8, "optimizer_end_s": 3.9, "end_s": 4.0}
    rows = iterations(
        iteration(0, 0.0) | trails,
        iteration(1, 0.0) | slow,
        iteration(0, 3.25, index=1, forward_stall_s=0.5),
        iteration(1, 4.0, index=1),
    )
    fast = worker_parts(rows, num_workers=2).filter((pl.col("rank") == 0) & (pl.col("index") == 1)).row(0, named=True)
    waited_at_the_end_s = 7.0 - 6.25
    assert fast["waiting_s"] == pytest.approx(0.3 + waited_at_the_end_s)
    assert fast["exposed_s"] == pytest.approx(0.2 + 3.0 - waited_at_the_end_s)


def test_iterations_that_not_everyone_finished_do_not_count() -> None:
    cut = iterations(iteration(0, 10.0), iteration(1, 10.25), iteration(0, 20.0, index=1, end_s=99.0))
    assert per_iteration(cut, num_workers=2, dilation=1.0)["index"].to_list() == [0]
    assert worker_parts(iterations(), num_workers=2).is_empty()


_STEP = st.floats(0, 2)


def drifting(num_workers: int, steps: list[list[float]]) -> pl.DataFrame:
    """Iterations of workers, each of which goes on from its own end, and waits for gradients in half its forward."""
    rows: list[dict[str, object]] = []
    for position, (gap, data, forward, backward, exposed, optimizer) in enumerate(steps):
        rank, index = position % num_workers, position // num_workers
        start_s = max([float(str(row["end_s"])) for row in rows if row["rank"] == rank], default=0.0) + gap
        times = np.cumsum([start_s, data, forward, backward, exposed, optimizer, 0.1])
        names = ("start_s", "data_end_s", "forward_end_s", "backward_compute_end_s", "backward_end_s")
        moments = dict(zip((*names, "optimizer_end_s", "end_s"), times, strict=True))
        moments["host_to_device_end_s"] = moments["data_end_s"]
        rows.append(iteration(rank, start_s, index=index, forward_stall_s=forward / 2) | moments)
    return iterations(*rows)


@given(
    st.integers(1, 4),
    st.lists(st.lists(_STEP, min_size=6, max_size=6), min_size=1, max_size=12),
    st.booleans(),
)
def test_parts_add_up_and_none_is_negative(num_workers: int, steps: list[list[float]], ends_together: bool) -> None:
    rows = drifting(num_workers, steps)
    parts = worker_parts(rows, num_workers=num_workers, ends_together=ends_together)
    sums = parts.select(pl.sum_horizontal(*PARTS)).to_series().to_numpy()
    assert np.allclose(sums, parts["time_s"].to_numpy())
    for name in PARTS:
        assert (parts[name].to_numpy() > -1e-9).all(), name


@given(
    st.integers(1, 4),
    st.lists(st.lists(_STEP, min_size=6, max_size=6), min_size=4, max_size=16),
    st.booleans(),
)
def test_parts_reported_while_a_phase_goes_on_add_up_to_those_of_its_rows_so_far(
    num_workers: int, steps: list[list[float]], ends_together: bool
) -> None:
    rows = drifting(num_workers, steps[: len(steps) // num_workers * num_workers])
    meanwhile = PartsMeanwhile(ends_together=ends_together)
    reported_s = {rank: dict.fromkeys(ITERATION_PART_NAMES, 0.0) for rank in range(num_workers)}
    for index in range(rows.height // num_workers):
        for rank, parts_s in meanwhile.of(rows.filter(pl.col("index") == index).to_dicts()).items():
            for name, part_s in parts_s.items():
                reported_s[rank][name] += part_s
        so_far = worker_parts(
            rows.filter(pl.col("index") <= index), num_workers=num_workers, ends_together=ends_together
        )
        for rank, parts_s in reported_s.items():
            found = so_far.filter(pl.col("rank") == rank).select(pl.col(PARTS).sum()).row(0, named=True)
            found["exposed_communication_s"] = found.pop("exposed_s")
            assert {f"{name}_s": part_s for name, part_s in parts_s.items()} == pytest.approx(found, abs=1e-9)


def test_parts_add_up_in_every_iteration_of_a_modelled_run(record: Callable[..., Record]) -> None:
    frame = per_iteration(record(dilation=2.0).iterations, num_workers=4, dilation=2.0)
    total = frame.select(pl.sum_horizontal(*PARTS)).to_series()
    assert np.allclose(total.to_numpy(), frame["time_s"].to_numpy())
    assert by_rounds(frame, None) is frame
    assert by_rounds(frame, 10).height == 3
