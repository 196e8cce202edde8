"""What-if compression."""

import torch

from tests.lockstep import Workers
from transports.compression.divide import Divide


def test_the_first_elements_are_averaged_and_the_rest_stays_each_workers_own() -> None:
    workers = Workers({"kind": "divide", "by": 2}, 2)
    first, second = workers.mean([torch.tensor([1.0, 2, 3]), torch.tensor([5.0, 6, 7])])
    assert first.tolist() == [3, 4, 3]
    assert second.tolist() == [3, 4, 7]
    assert workers.payload_bytes() == 2 * 4


def test_half_of_the_bytes_stays_half_in_a_shorter_type() -> None:
    workers = Workers({"kind": "divide", "by": 2}, 2)
    workers.mean([torch.ones(10, dtype=torch.bfloat16)] * 2)
    assert workers.payload_bytes() == 5 * 2


def test_the_share_counts_as_the_decimal_that_was_written() -> None:
    for tenths in range(10, 200):
        compressor = Divide(by=tenths / 10)
        for num_elements in range(1, 200):
            assert compressor.sent(num_elements) == -(-num_elements * 10 // tenths)
