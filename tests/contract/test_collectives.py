"""What every collective promises, whatever its name: right results, the bytes it says, over any channel."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.threads import run_communicators
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES, Buffer, Collective, Operation, World
from transports.collectives.cost import alpha_beta_time_s, bound_s, interpret, schedules, sent_bytes
from transports.communicator import Communicator
from transports.framing import DTYPES

WORLD_SIZES = range(1, 10)
NUMS_ELEMENTS = (0, 1, 2, 7, 64, 1001)
SMALL_SEGMENTS = {"ring": {"segment_bytes": "64B"}}
"""Options that make small buffers travel in many messages."""


def collectives() -> Iterator[Collective]:
    for kind in COLLECTIVES.kinds():
        yield COLLECTIVES.parse(kind)
        if kind in SMALL_SEGMENTS:
            yield COLLECTIVES.parse({"kind": kind, **SMALL_SEGMENTS[kind]})


def cases() -> Iterator[Any]:
    for collective in collectives():
        for operation in sorted(collective.operations):
            yield pytest.param(collective, operation, id=f"{collective}-{operation}")


def split(values: np.ndarray[Any, Any], world: World) -> list[np.ndarray[Any, Any]]:
    return np.array_split(values, world.num_workers)


def prepared(
    operation: Operation, world: World, inputs: Sequence[np.ndarray[Any, Any]]
) -> list[dict[Buffer, np.ndarray[Any, Any]]]:
    """Each participant's buffers, as the executor lays them out before the first step."""
    buffers: list[dict[Buffer, np.ndarray[Any, Any]]] = []
    for rank, values in enumerate(inputs):
        if operation == "reduce_scatter":
            buffers.append({"input": values.copy(), "output": split(values, world)[rank].copy()})
        elif operation == "all_gather":
            output = np.full_like(values, np.nan)
            split(output, world)[rank][:] = split(values, world)[rank]
            buffers.append({"output": output})
        elif operation == "barrier":
            buffers.append({"output": np.zeros(1)})
        else:
            buffers.append({"output": values.copy()})
    return buffers


def expected(
    operation: Operation, world: World, inputs: Sequence[np.ndarray[Any, Any]], rank: int, root: int
) -> np.ndarray[Any, Any]:
    total = np.sum(inputs, axis=0)
    if operation == "all_reduce":
        return np.asarray(total)
    if operation == "reduce_scatter":
        return split(total, world)[rank]
    if operation == "all_gather":
        return np.concatenate([split(values, world)[part] for part, values in enumerate(inputs)])
    return inputs[root] if operation == "broadcast" else np.zeros(1)


@pytest.mark.parametrize("num_workers", WORLD_SIZES)
@pytest.mark.parametrize(("collective", "operation"), list(cases()))
def test_the_schedule_gives_the_float64_result(collective: Collective, operation: Operation, num_workers: int) -> None:
    world = World(num_workers=num_workers)
    for num_elements in NUMS_ELEMENTS:
        root = num_elements % num_workers
        generator = np.random.default_rng(num_elements)
        # Whole numbers, so that the order of additions cannot matter.
        inputs = [generator.integers(-1000, 1000, num_elements).astype(np.float64) for _ in range(num_workers)]
        buffers = prepared(operation, world, inputs)
        every = schedules(collective, operation, world, num_elements, 8, root=root)
        num_messages = interpret(every, buffers)
        for rank in range(num_workers):
            np.testing.assert_array_equal(
                buffers[rank]["output"], expected(operation, world, inputs, rank, root), f"n={num_elements}"
            )
        counts = sent_bytes(collective, operation, world, num_elements, 8, root=root)
        assert sum(count.num_messages for count in counts.values()) == num_messages


@pytest.mark.parametrize(("collective", "operation"), list(cases()))
def test_nobody_gets_past_a_barrier_alone(collective: Collective, operation: Operation) -> None:
    """Every result of an operation that needs all ranks depends on a message from each, directly or not."""
    if operation not in ("barrier", "all_reduce"):
        return
    for num_workers in WORLD_SIZES[1:]:
        world = World(num_workers=num_workers)
        every = schedules(collective, operation, world, 1, 8)
        buffers = [{"output": np.array([float(1 << rank)])} for rank in range(num_workers)]
        interpret(every, buffers)  # type: ignore[arg-type]
        assert {buffer["output"][0] for buffer in buffers} == {float((1 << num_workers) - 1)}


@pytest.mark.parametrize(("collective", "operation"), list(cases()))
def test_no_time_is_below_the_bound(collective: Collective, operation: Operation) -> None:
    for num_workers in (2, 3, 8):
        world = World(num_workers=num_workers)
        taken_s = alpha_beta_time_s(
            collective, operation, world, 4096, 4, alpha_s=1e-4, beta_s_per_byte=8e-9, gamma_s_per_byte=0.0
        )
        floor_s = bound_s(operation, num_workers=num_workers, size_bytes=16384, goodput_bps=1e9)
        assert taken_s >= floor_s + 1e-4


def test_the_operations_are_those_of_the_interface() -> None:
    for collective in collectives():
        assert collective.operations <= set(get_args(Operation))


CHANNEL_KINDS = ("memory", "tcp")


def values_of(dtype: torch.dtype, rank: int, num_elements: int) -> torch.Tensor:
    values = (torch.arange(num_elements) * 7 + rank * 3) % 5
    return values.to(dtype)


def reduced(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The reference, in float64 or int64 and back."""
    wide = torch.float64 if inputs[0].is_floating_point() else torch.int64
    stack = torch.stack([values.to(wide) for values in inputs])
    if inputs[0].dtype == torch.bool:
        return stack.amax(0).bool() if op in ("sum", "max") else stack.amin(0).bool()
    if op == "avg":
        total = stack.sum(0)
        mean = total / len(inputs) if total.is_floating_point() else total.div(len(inputs), rounding_mode="trunc")
        return mean.to(inputs[0].dtype)
    result = {"sum": stack.sum(0), "product": stack.prod(0), "min": stack.amin(0), "max": stack.amax(0)}[op]
    return result.to(inputs[0].dtype)


def every_operation(communicator: Communicator) -> None:
    """Run everything with every type and compare with the reference."""
    rank, size = communicator.rank, communicator.size
    for name in DTYPES:
        dtype = getattr(torch, name)
        for num_elements in (0, 1, 3, 1000):
            inputs = [values_of(dtype, other, num_elements) for other in range(size)]
            # The parts of size^2 elements that a rank gathers and scatters.
            parts = [values_of(dtype, other, num_elements * size) for other in range(size)]
            for op in ("sum", "product", "min", "max", "avg"):
                if op == "avg" and dtype == torch.bool:
                    continue
                mine = inputs[rank].clone()
                communicator.all_reduce(mine, op).wait()
                assert torch.equal(mine, reduced(op, inputs)), (name, num_elements, op)
                part, whole = torch.empty(num_elements, dtype=dtype), parts[rank].clone()
                communicator.reduce_scatter(part, whole, op).wait()
                assert torch.equal(part, reduced(op, parts).view(size, num_elements)[rank]), (name, num_elements, op)
                assert torch.equal(whole, parts[rank]), "the input was changed"
            gathered = torch.empty(size * num_elements, dtype=dtype)
            communicator.all_gather(gathered, inputs[rank]).wait()
            assert torch.equal(gathered, torch.cat(inputs))
            for root in range(size):
                told = inputs[rank].clone()
                communicator.broadcast(told, root).wait()
                assert torch.equal(told, inputs[root])
    communicator.barrier().wait()


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize("collective", COLLECTIVES.kinds())
def test_every_operation_and_type_gives_the_reference(collective: str, size: int, channel: str) -> None:
    results = run_communicators(every_operation, size, channel=channel, collective=collective)
    assert results == [None] * size


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES.kinds())
def test_the_bytes_sent_are_the_schedule_s(collective: str, channel: str) -> None:
    size, num_elements = 4, 1_000_003

    def body(communicator: Communicator) -> dict[int, int]:
        communicator.all_reduce(torch.ones(num_elements)).wait()
        return {peer: counts.payload_bytes_sent for peer, counts in communicator.statistics().items()}

    counted = run_communicators(body, size, channel=channel, collective=collective)
    expected_counts = sent_bytes(COLLECTIVES.parse(collective), "all_reduce", World(num_workers=size), num_elements, 4)
    header_bytes = CHANNELS[channel].header_bytes
    for (rank, peer), count in expected_counts.items():
        assert counted[rank].pop(peer) == count.payload_bytes + count.num_messages * header_bytes
    assert all(not num_bytes for rest in counted for num_bytes in rest.values())


@pytest.mark.parametrize("collective", COLLECTIVES.kinds())
def test_the_same_sum_comes_out_on_every_rank_to_the_last_bit(collective: str) -> None:
    def body(communicator: Communicator) -> torch.Tensor:
        values = torch.rand(100_003, generator=torch.Generator().manual_seed(communicator.rank))
        communicator.all_reduce(values).wait()
        return values

    first, *others = run_communicators(body, 5, channel="tcp", collective=collective)
    assert all(torch.equal(first, other) for other in others)
    again, *_ = run_communicators(body, 5, channel="tcp", collective=collective)
    assert torch.equal(first, again)
