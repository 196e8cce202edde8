"""Elements at random."""

import torch

from tests.lockstep import Workers


def test_one_of_each_run_is_sent_and_stands_for_it() -> None:
    workers = Workers({"kind": "random_k", "ratio": 0.25, "error_feedback": False}, 2)
    (result, _) = workers.mean([torch.full((40,), 1.0), torch.full((40,), 3.0)])
    assert sorted(result.tolist()) == [0.0] * 30 + [8.0] * 10
    assert (result.reshape(10, 4).sum(1) == 8).all()


def test_with_error_feedback_values_are_sent_as_they_are() -> None:
    workers = Workers({"kind": "random_k", "ratio": 0.5}, 1)
    total = sum((workers.mean([torch.ones(10)])[0] for _ in range(20)), torch.zeros(10))
    assert (total <= 20).all()
    assert float(total.sum()) >= 10 * 17


def test_every_exchange_draws_anew() -> None:
    workers = Workers({"kind": "random_k", "ratio": 0.1, "error_feedback": False}, 1)
    first, second = (workers.mean([torch.ones(1000)])[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_what_is_not_finite_shows_though_nobody_draws_it() -> None:
    workers = Workers({"kind": "random_k", "ratio": 0.01, "error_feedback": False}, 2)
    for position in range(100):
        values = [torch.ones(100), torch.ones(100)]
        values[1][position] = float("nan")
        assert torch.isnan(workers.mean(values)[0]).any()


def test_what_stands_for_a_run_stays_finite() -> None:
    workers = Workers({"kind": "random_k", "ratio": 0.01, "error_feedback": False}, 2)
    assert torch.isfinite(workers.mean([torch.full((100,), 3e38)] * 2)[0]).all()
