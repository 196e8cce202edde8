import pytest

from switch_agg.round_trip import (
    INITIAL_TIMEOUT_S,
    MAX_PATIENCE,
    MAX_TIMEOUT_S,
    MIN_PATIENCE,
    MIN_TIMEOUT_S,
    RoundTripEstimator,
)


def test_the_timeout_follows_rfc_6298() -> None:
    estimator = RoundTripEstimator()
    assert estimator.timeout_s == INITIAL_TIMEOUT_S
    estimator.sample(0.1)
    assert estimator.smoothed_s == 0.1
    assert estimator.timeout_s == pytest.approx(0.1 + 4 * 0.05)
    estimator.sample(0.1)
    assert estimator.timeout_s == pytest.approx(0.1 + 4 * 0.0375)
    for _ in range(200):
        estimator.sample(1e-4)
    assert estimator.timeout_s == MIN_TIMEOUT_S


def test_the_timeout_has_at_most_so_many_round_trips() -> None:
    estimator = RoundTripEstimator(max_round_trips=2)
    for number in range(5):
        estimator.sample(0.1)
        assert estimator.timeout_s == pytest.approx(0.1 + min(0.1, 4 * 0.05 * 0.75**number))


def test_a_sample_counts_as_no_more_than_so_many_round_trips() -> None:
    estimator = RoundTripEstimator(max_round_trips=2)
    estimator.sample(0.01)
    estimator.sample(5.0)
    assert estimator.smoothed_s == pytest.approx(0.01 * (1 + 1 / 8))


def test_doubling_ends_at_so_many_timeouts() -> None:
    estimator = RoundTripEstimator(max_backoff=16)
    estimator.sample(0.01)
    waits = [estimator.after_attempts_s(attempts) / estimator.timeout_s for attempts in range(1, 9)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 16, 16, 16])


def test_it_doubles_up_to_its_limit() -> None:
    estimator = RoundTripEstimator()
    estimator.sample(0.02)
    assert estimator.after_attempts_s(1) == estimator.timeout_s
    assert estimator.after_attempts_s(2) == 2 * estimator.timeout_s
    assert estimator.after_attempts_s(50) == MAX_TIMEOUT_S


def test_patience_grows_while_chunks_are_late_and_sinks_while_they_are_lost() -> None:
    estimator = RoundTripEstimator()
    estimator.sample(0.01)
    assert estimator.patience_s == MIN_PATIENCE * 0.01
    assert not estimator.was_late(0.02, 1.0)
    assert estimator.patience == MIN_PATIENCE
    assert estimator.was_late(0.001, 1.0)
    grown = estimator.patience
    assert grown > MIN_PATIENCE
    assert estimator.was_late(0.001, 1.001)
    assert estimator.patience == grown  # once a round trip
    for step in range(100):
        assert estimator.was_late(0.0, 2.0 + step)
    assert estimator.patience == MAX_PATIENCE
    for _ in range(200):
        assert not estimator.was_late(0.02, 200.0)
    assert estimator.patience == pytest.approx(MIN_PATIENCE, abs=0.01)
