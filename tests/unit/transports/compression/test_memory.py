"""What is kept of a parameter follows it from bucket to bucket."""

import numpy as np

from transports.compression.base import Piece
from transports.compression.memory import Memory, Scratch

A, B, C = Piece("a", (2, 2)), Piece("b", (3,)), Piece("c", (1,))


def test_it_starts_at_zero_and_stays() -> None:
    memory = Memory()
    flat = memory.flat([A, B])
    assert flat.tolist() == [0] * 7
    flat += np.arange(7)
    assert memory.flat([A, B]).tolist() == list(range(7))


def test_it_follows_parameters_into_other_buckets_and_back() -> None:
    memory = Memory()
    memory.flat([A, B])[:] = np.arange(7)
    memory.flat([C])[:] = 9
    assert memory.flat([B, C]).tolist() == [4, 5, 6, 9]
    memory.flat([B, C])[:] += 10
    assert memory.flat([A]).tolist() == [0, 1, 2, 3]
    assert memory.flat([A, B]).tolist() == [0, 1, 2, 3, 14, 15, 16]


def test_scratch_memory_is_the_same_again_and_another_for_another_use() -> None:
    scratch = Scratch()
    first = scratch.bytes("rows", 100)
    assert np.shares_memory(first, scratch.bytes("rows", 60))
    assert not np.shares_memory(first, scratch.bytes("mean", 100))
    assert len(scratch.bytes("rows", 60)) == 60
    grown = scratch.bytes("rows", 200)
    assert len(grown) == 200
    assert not np.shares_memory(grown, first)
