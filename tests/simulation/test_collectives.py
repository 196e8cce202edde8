"""Random worlds, sizes and options: every schedule ends, sums exactly, and sends what it is said to send."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transports.collectives.base import COLLECTIVES, Buffer, Segmented, World
from transports.collectives.cost import bound_s, interpret, sent_bytes
from transports.collectives.ring import Ring
from transports.collectives.schedules.expanded import schedules
from transports.collectives.timing import alpha_beta_time_s


@settings(max_examples=60)
@given(
    num_workers=st.integers(1, 24),
    num_elements=st.integers(0, 600),
    segment_bytes=st.sampled_from(["8B", "24B", "100B", "1KiB", "512KiB"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_ring_of_any_size_sums_exactly(num_workers: int, num_elements: int, segment_bytes: str, seed: int) -> None:
    world = World(num_workers=num_workers)
    ring = Ring.model_validate({"segment_bytes": segment_bytes})
    generator = np.random.default_rng(seed)
    inputs = generator.integers(-(10**6), 10**6, (num_workers, num_elements)).astype(np.float64)
    buffers: list[dict[Buffer, np.ndarray[Any, Any]]] = [{"output": values.copy()} for values in inputs]
    interpret(schedules(ring, "all_reduce", world, num_elements, 8), buffers)
    for buffer in buffers:
        np.testing.assert_array_equal(buffer["output"], inputs.sum(axis=0))
    sent = sent_bytes(ring, "all_reduce", world, num_elements, 8)
    assert sum(count.payload_bytes for count in sent.values()) == 2 * (num_workers - 1) * num_elements * 8


@settings(max_examples=60)
@given(
    num_workers=st.integers(2, 12),
    num_elements=st.integers(1, 20_000),
    alpha_s=st.floats(0, 1e-2),
    rate_bps=st.floats(1e6, 1e11),
)
def test_the_predicted_time_lies_between_the_bound_and_every_message_alone(
    num_workers: int, num_elements: int, alpha_s: float, rate_bps: float
) -> None:
    for kind in COLLECTIVES.kinds():
        collective = COLLECTIVES.parse(kind)
        world = collective.world(num_workers)
        taken_s = alpha_beta_time_s(
            collective, "all_reduce", world, num_elements, 4, alpha_s=alpha_s, beta_s_per_byte=8 / rate_bps
        )
        counts = sent_bytes(collective, "all_reduce", world, num_elements, 4).values()
        alone_s = sum(count.num_messages * alpha_s + 2 * count.payload_bytes * 8 / rate_bps for count in counts)
        floor_s = bound_s("all_reduce", world=world, size_bytes=num_elements * 4, goodput_bps=rate_bps)
        assert floor_s * (1 - 1e-9) <= taken_s <= alone_s * (1 + 1e-9)


@settings(max_examples=100)
@given(
    kind=st.sampled_from(COLLECTIVES.kinds()),
    num_workers=st.integers(1, 20),
    num_elements=st.integers(0, 400),
    racks=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_collective_sums_exactly(
    kind: str, num_workers: int, num_elements: int, racks: list[int], seed: int
) -> None:
    collective = COLLECTIVES.parse(kind)
    if isinstance(collective, Segmented):
        collective = collective.model_copy(update={"segment_bytes": 72})
    world = collective.world(num_workers, racks=tuple(racks[:num_workers]))
    generator = np.random.default_rng(seed)
    inputs = generator.integers(-(10**6), 10**6, (num_workers, num_elements)).astype(np.float64)
    buffers: list[dict[Buffer, np.ndarray[Any, Any]]] = [{"output": values.copy()} for values in inputs]
    buffers += [{"output": np.full(num_elements, np.nan)} for _ in range(world.num_servers)]
    interpret(schedules(collective, "all_reduce", world, num_elements, 8), buffers)
    for buffer in buffers[:num_workers]:
        np.testing.assert_array_equal(buffer["output"], inputs.sum(axis=0))


@pytest.mark.parametrize("num_workers", [2, 4, 16])
def test_a_long_ring_is_within_a_few_percent_of_the_bound(num_workers: int) -> None:
    taken_s = alpha_beta_time_s(
        Ring(),
        "all_reduce",
        World(num_workers=num_workers),
        6_250_000,
        4,
        alpha_s=100e-6,
        beta_s_per_byte=8e-9,
        gamma_s_per_byte=0.2e-9,
    )
    floor_s = bound_s("all_reduce", world=World(num_workers=num_workers), size_bytes=25_000_000, goodput_bps=1e9)
    assert floor_s < taken_s < 1.05 * floor_s
