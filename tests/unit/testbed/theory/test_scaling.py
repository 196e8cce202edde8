"""Initialisation, the main node's knee, strong scaling."""

import pytest

from testbed.theory.scaling import MainNode, Storage, Training

TRAINING = Training(
    data_bytes=1e9, num_samples=64_000, num_epochs=1, batch_size=64, compute_s=0.1, size_bytes=10**6, launch_s=2.0
)
FAST_SERVER = MainNode(rate_bps=1e12)


def test_a_full_read_grows_with_workers_and_a_partitioned_one_does_not() -> None:
    whole, partitioned = Storage(shared_bytes_per_s=1e8), Storage(shared_bytes_per_s=1e8, partitioned=True)
    assert [whole.read_s(1e9, count) for count in (1, 2, 4, 8)] == [10, 20, 40, 80]
    assert [partitioned.read_s(1e9, count) for count in (1, 2, 4, 8)] == [10, 10, 10, 10]


def test_own_disks_decide_while_shared_storage_is_faster() -> None:
    storage = Storage(shared_bytes_per_s=1e9, disk_bytes_per_s=2.5e8)
    assert [storage.read_s(1e9, count) for count in (1, 4, 8)] == [4, 4, 8]


def test_nothing_scales_beyond_four_when_reading_dominates() -> None:
    slow = Storage(shared_bytes_per_s=1e8)
    apart = Storage(shared_bytes_per_s=1e8, partitioned=True)
    assert TRAINING.speed_up(slow, FAST_SERVER, 8) / TRAINING.speed_up(slow, FAST_SERVER, 4) <= 1.05
    assert TRAINING.speed_up(apart, FAST_SERVER, 8) / TRAINING.speed_up(apart, FAST_SERVER, 4) >= 1.5


def test_the_main_node_is_saturated_where_its_messages_take_as_long_as_computing() -> None:
    server = MainNode(rate_bps=2.56e9)
    knee = server.saturated_from(10**6, compute_s=0.1)
    assert knee == pytest.approx(16)
    assert server.time_s(10**6, round(knee) + 1) == pytest.approx(0.1)


def test_one_worker_has_nobody_to_serve() -> None:
    assert MainNode(rate_bps=1e9, latency_s=1.0).time_s(10**6, 1) == 0.0
    assert TRAINING.speed_up(Storage(shared_bytes_per_s=1e9), FAST_SERVER, 1) == 1.0


def test_adding_costs_for_every_worker() -> None:
    server = MainNode(rate_bps=1e12, addition_s_per_byte=1e-9)
    assert server.time_s(10**6, 4) == pytest.approx(4e-3 + 2 * 3 * 8e-6)
