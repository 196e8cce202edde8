"""Scaling factor and network efficiency, calculated manually."""

from typing import Any

import polars as pl
import pytest

from testbed.verdict.scaling import compute_only_time_s, scaling
from tests.rows import iteration, iterations


def computed(
    rank: int, start_s: float, index: int, phase: str, scale: float = 1.0, **changes: Any
) -> dict[str, object]:
    """2.75 s forward and backward, 0.5 s optimizer, times `scale`; 0.5 s of data and bookkeeping. No communication."""
    ready_s = start_s + 0.25 + 2.75 * scale
    moments = {"data_end_s": start_s + 0.25, "forward_end_s": start_s + 0.25 + 0.75 * scale}
    moments |= {"backward_compute_end_s": ready_s, "backward_end_s": ready_s}
    moments |= {"optimizer_end_s": ready_s + 0.5 * scale, "end_s": ready_s + 0.5 * scale + 0.25}
    return {**iteration(rank, start_s, phase, index, slowdown=1.0), **moments, **changes}


def run(scales: tuple[float, ...] = (1.0, 1.0), num_alone: int = 4, together: float = 1.0) -> pl.DataFrame:
    """Workers alone in turn, so many iterations of each; then one measured iteration of all."""
    rows, now_s = [], 0.0
    for rank, scale in enumerate(scales):
        for index in range(num_alone):
            rows.append(computed(rank, now_s, index, "compute_alone", scale))
            now_s = float(str(rows[-1]["end_s"]))
    measured = []
    for rank, scale in enumerate(scales):
        row = computed(rank, 100.0, 0, "measured", scale * together)
        late = {name: float(str(row[name])) + 3.0 for name in ("backward_end_s", "optimizer_end_s", "end_s")}
        measured.append({**row, **late})
    return iterations(*rows, *measured)


def test_the_factor_is_alone_over_together() -> None:
    found = scaling(run(), num_workers=2, dilation=2.0, iteration_s=6.75 / 2)
    assert found.alone_s == pytest.approx(3.75 / 2)
    assert found.contention == pytest.approx(1.0)
    assert found.factor == pytest.approx(3.75 / 6.75)
    assert found.missing is None
    assert found.workers[1].num_iterations == 4
    assert found.workers[1].computing_s == pytest.approx(3.25 / 2)


def test_workers_unlike_each_other_count_by_what_all_of_them_would_make_alone() -> None:
    found = scaling(run((1.0, 3.0)), num_workers=2, dilation=1.0, iteration_s=13.25)
    fast_s, slow_s = 3.75, 10.25
    samples_per_s = 16 / fast_s + 16 / slow_s
    assert found.factor == pytest.approx(2 * 16 / 13.25 / samples_per_s)


@pytest.mark.parametrize(("together", "missing"), [(1.04, False), (1.06, True), (0.96, False), (0.94, True)])
def test_computing_in_the_run_must_take_as_long_as_alone(together: float, missing: bool) -> None:
    found = scaling(run(together=together), num_workers=2, dilation=1.0, iteration_s=7.0)
    assert (found.factor is None) == missing
    assert found.contention == pytest.approx(together)
    if missing:
        assert found.missing is not None
        assert (
            f"computing took 6 % {'longer' if together > 1 else 'shorter'} in the run than alone on w0" in found.missing
        )


def test_one_worker_that_lost_its_core_is_enough() -> None:
    rows = run().with_columns(
        backward_compute_end_s=pl.col("backward_compute_end_s")
        + pl.when((pl.col("rank") == 1) & (pl.col("phase") == "measured")).then(0.5).otherwise(0.0)
    )
    found = scaling(rows, num_workers=2, dilation=1.0, iteration_s=7.0)
    assert found.factor is None
    assert found.missing is not None
    assert "alone on w1" in found.missing


def test_slowdowns_that_the_spec_asks_for_are_no_contention() -> None:
    rows = run(together=2.0).with_columns(slowdown=pl.when(pl.col("phase") == "measured").then(2.0).otherwise(1.0))
    assert scaling(rows, num_workers=2, dilation=1.0, iteration_s=9.0).contention == pytest.approx(1.0)


def test_which_slowdowns_were_drawn_alone_does_not_move_the_scaling_factor() -> None:
    """Every second measured iteration is slowed down by 5; alone none was, or all were."""
    measured = [computed(0, 100.0, 0, "measured"), computed(0, 200.0, 1, "measured", 5.0, slowdown=5.0)]
    factors = []
    for drawn in (1.0, 5.0):
        alone = [computed(0, 20.0 * index, index, "compute_alone", drawn, slowdown=drawn) for index in range(8)]
        ends = {"end_s": 20.0 * 7 + 0.5 + 3.25 * drawn}
        found = scaling(
            iterations(*alone[:7], {**alone[7], **ends}, *measured), num_workers=1, dilation=1.0, iteration_s=20.0
        )
        assert found.contention == pytest.approx(1.0)
        factors.append(found.alone_s)
    # 20 s from one start to the next, whatever it computed: what is not computing is 16.75 s, or 3.75 s.
    rest_s = [(7 * 20.0 + 0.5 + 3.25 * drawn) / 8 - 3.25 * drawn for drawn in (1.0, 5.0)]
    assert factors == pytest.approx([rest + 3.25 * 3 for rest in rest_s])


def test_without_communication_every_worker_is_as_slow_as_in_each_measured_iteration() -> None:
    """Now the one, now the other is slowed down by 3: the slowest takes 0.5 + 3 x 3.25 s each time."""
    drawn = [computed(rank, 0.0, 0, "compute_only") for rank in range(2)]
    measured = [
        computed(rank, 100.0 * (1 + index), index, "measured", scale, slowdown=scale)
        for rank in range(2)
        for index in range(2)
        for scale in [3.0 if rank == index else 1.0]
    ]
    rows = iterations(*drawn, *measured)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0) == pytest.approx(0.5 + 3 * 3.25)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=None) == pytest.approx(0.5 + 2 * 3.25)
    # Who exchanges after both of them has waited for nobody: each was the slow one once.
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=2) == pytest.approx(0.5 + 2 * 3.25)


def test_without_communication_a_round_of_local_sgd_is_as_long_as_its_slowest_workers() -> None:
    """Who is always twice as slow is so in rounds, too; the last one, which is shorter, does not count."""
    drawn = [computed(rank, 0.0, 0, "compute_only", 1.0 + rank, slowdown=1.0 + rank) for rank in range(2)]
    measured = [
        computed(rank, 100.0 * index, index, "measured", slowdown=1.0 + rank * (5.0 if index == 4 else 1.0))
        for rank in range(2)
        for index in range(5)
    ]
    rows = iterations(*drawn, *measured)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=2) == pytest.approx(0.5 + 2 * 3.25)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=9) == pytest.approx(0.5 + 2.8 * 3.25)


def test_without_communication_what_evens_out_within_a_round_is_nobodys_wait() -> None:
    """Computing that takes now the one and now the other three times as long, by itself."""
    short_s, long_s = 3.75, 10.25
    drawn = [
        computed(rank, (long_s if rank == 0 else short_s) * index, index, "compute_only", 3.0 if rank == index else 1.0)
        for rank in range(2)
        for index in range(2)
    ]
    measured = [computed(rank, 100.0 * (1 + index), index, "measured") for rank in range(2) for index in range(2)]
    rows = iterations(*drawn, *measured)
    mean_s = (short_s + long_s) / 2
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=2) == pytest.approx(mean_s)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=1) == pytest.approx(long_s)


def test_too_few_iterations_alone_or_none() -> None:
    few = scaling(run(num_alone=3), num_workers=2, dilation=1.0, iteration_s=7.0)
    assert few.factor is None
    assert few.missing is not None
    assert "only 6 iterations were computed alone" in few.missing
    measured = run().filter(pl.col("phase") == "measured")
    assert scaling(measured, num_workers=2, dilation=1.0, iteration_s=7.0).missing == "no worker computed alone"
    nothing = scaling(iterations(), num_workers=2, dilation=1.0, iteration_s=None)
    assert (nothing.factor, nothing.missing, nothing.alone_s) == (None, None, None)


def replayed(late_s: float = 0.0) -> pl.DataFrame:
    """Two workers that compute at once, each as its pace says or so much later; then one measured iteration."""
    paced = {"pace_s": 3.25, "overrun_s": late_s}
    rows = [computed(rank, 10.0 * index, index, "compute_only", **paced) for rank in range(2) for index in range(4)]
    return iterations(*rows, *(computed(rank, 100.0, 0, "measured", **paced) for rank in range(2)))


def test_replayed_computing_is_as_long_beside_others_as_alone() -> None:
    found = scaling(replayed(), num_workers=2, dilation=2.0, iteration_s=6.75 / 2)
    alone_s = (3 * 10.0 + 3.75) / 4  # from one start to the next; the last one to its own end
    assert found.factor == pytest.approx(alone_s / 6.75)
    assert found.workers[0].num_iterations == 4
    unpaced = replayed().with_columns(pace_s=0.0)
    assert scaling(unpaced, num_workers=2, dilation=2.0, iteration_s=6.75 / 2).missing == "no worker computed alone"


@pytest.mark.parametrize(("late_s", "missing"), [(0.06, False), (0.07, True)])
def test_replayed_computing_that_is_later_than_its_pace_without_communication_is_no_reference(
    late_s: float, missing: bool
) -> None:
    found = scaling(replayed(late_s), num_workers=2, dilation=1.0, iteration_s=6.75)
    assert (found.factor is None) == missing
    if missing:
        assert found.missing is not None
        assert "2 % later than its pace on w0" in found.missing


def test_without_communication_an_iteration_lasts_as_long_as_its_slowest_worker_from_its_own_start() -> None:
    rows = iterations(computed(0, 0.0, 0, "compute_only"), computed(1, 9.0, 0, "compute_only", 2.0))
    assert compute_only_time_s(rows, num_workers=2, dilation=2.0) == pytest.approx(7.0 / 2)
    assert compute_only_time_s(rows, num_workers=2, dilation=1.0, every=None) == pytest.approx((3.75 + 7.0) / 2)
    assert compute_only_time_s(iterations(iteration(0, 1.0)), num_workers=1, dilation=1.0) is None
