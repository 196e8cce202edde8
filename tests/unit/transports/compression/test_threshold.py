"""Elements not below a threshold."""

import torch

from tests.lockstep import Workers


def test_sizes_count_not_values() -> None:
    workers = Workers({"kind": "threshold", "threshold": 2.0}, 1)
    assert workers.mean([torch.tensor([-5.0, 1, 2, -1.5])])[0].tolist() == [-5, 0, 2, 0]
    assert workers.payload_bytes() == 8 + 2 * 8
    assert workers.mean([torch.tensor([0.0, 0.5, 0, -1])])[0].tolist() == [0, 0, 0, -2.5]


def test_workers_may_send_nothing_at_all() -> None:
    workers = Workers({"kind": "threshold", "threshold": 2.0}, 2)
    assert workers.mean([torch.ones(4), torch.tensor([0.0, 8, 0, 0])])[0].tolist() == [0, 4, 0, 0]
