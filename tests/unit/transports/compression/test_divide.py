"""What-if compression."""

import torch

from tests.lockstep import Workers


def test_the_first_elements_are_averaged_and_the_rest_stays_each_workers_own() -> None:
    workers = Workers({"kind": "divide", "by": 2}, 2)
    first, second = workers.mean([torch.tensor([1.0, 2, 3]), torch.tensor([5.0, 6, 7])])
    assert first.tolist() == [3, 4, 3]
    assert second.tolist() == [3, 4, 7]
    assert workers.payload_bytes() == 2 * 4
