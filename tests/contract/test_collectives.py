"""What every collective promises, whatever its name: right results, the bytes it says, over any channel."""

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.over_all import over_all
from tests.threads import run_communicators
from transports.channels.base import CHANNELS
from transports.channels.framing import DTYPES
from transports.collectives.base import COLLECTIVES, Buffer, Collective, Operation, Segmented, World, reach
from transports.collectives.cost import bound_s, interpret, sent_bytes
from transports.collectives.recursive_doubling import RecursiveDoubling
from transports.collectives.schedules.expanded import schedules
from transports.collectives.timing import alpha_beta_time_s
from transports.errors import PeerLostError
from transports.execution.communicator import Communicator
from transports.execution.operations import ReduceOperation

WORLD_SIZES = range(1, 10)
NUMS_ELEMENTS = (0, 1, 2, 7, 64, 1001)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
OWN_KINDS = [kind for kind in COLLECTIVES.kinds() if kind != "in_network"]
"""Without the one whose schedule is the ring's and whose sums need an aggregator: tests/unit/transports."""
VARIANTS: dict[str, list[dict[str, object]]] = {
    "all_to_all": [{"exchange": "full"}],
    "tree": [{"credit": "1B"}],
    "parameter_server": [
        {"pipelined": True},
        {"servers": 3},
        {"servers": 2, "pipelined": True},
        {"placement": "co_located"},
        {"placement": "co_located", "pipelined": True},
    ],
}
"""Options that change who sends what to whom, beside the defaults."""


def collectives() -> Iterator[Collective]:
    for kind in OWN_KINDS:
        for options in ({}, *VARIANTS.get(kind, [])):
            collective = COLLECTIVES.parse({"kind": kind, **options})
            yield collective
            if isinstance(collective, Segmented):  # small buffers then travel in many messages
                yield collective.model_copy(update={"segment_bytes": 64})


def cases() -> Iterator[Any]:
    for collective in collectives():
        for operation in sorted(collective.operations):
            yield pytest.param(collective, operation, id=f"{collective.kind}-{collective}-{operation}")
    for operation in OPERATIONS:
        if operation != "all_reduce":
            yield pytest.param(RecursiveDoubling(), operation, id=f"default-{operation}")


def worlds(collective: Collective, num_workers: int) -> Iterator[World]:
    yield collective.world(num_workers)
    if collective.kind == "hierarchical":
        for num_racks in (2, 3):
            yield collective.world(
                num_workers, racks=tuple(rank * num_racks // num_workers for rank in range(num_workers))
            )
            yield collective.world(num_workers, racks=tuple(rank % num_racks for rank in range(num_workers)))


def split(values: np.ndarray[Any, Any], world: World) -> list[np.ndarray[Any, Any]]:
    return np.array_split(values, world.num_workers)


def prepared(
    operation: Operation, world: World, root: int, inputs: Sequence[np.ndarray[Any, Any]]
) -> list[dict[Buffer, np.ndarray[Any, Any]]]:
    """Each participant's buffers, as the executor lays them out before the first step."""
    buffers: list[dict[Buffer, np.ndarray[Any, Any]]] = []
    for rank, values in enumerate(inputs):
        empty = np.full_like(values, -77)
        own, place = split(values, world)[rank], split(empty, world)[rank]
        if operation == "reduce_scatter":
            buffers.append({"input": values.copy(), "output": own.copy()})
        elif operation == "all_gather":
            place[:] = own
            buffers.append({"output": empty})
        elif operation == "gather":
            place[:] = own
            buffers.append({"input": own.copy(), "output": empty} if rank == root else {"input": own.copy()})
        elif operation == "scatter":
            buffers.append({"input": values.copy(), "output": own.copy()} if rank == root else {"output": place})
        elif operation == "all_to_all":
            place[:] = own
            buffers.append({"input": values.copy(), "output": empty})
        elif operation == "barrier":
            buffers.append({"output": np.zeros(1, values.dtype)})
        else:
            buffers.append({"output": values.copy()})
    return buffers + [{"output": np.full_like(inputs[0], -99)} for _ in range(world.num_servers)]


def expected(
    operation: Operation, world: World, inputs: Sequence[np.ndarray[Any, Any]], rank: int, root: int
) -> np.ndarray[Any, Any] | None:
    """What is in the rank's output afterwards; None: nothing that means anything."""
    total = np.sum(inputs, axis=0)
    match operation:
        case "all_reduce":
            return np.asarray(total)
        case "reduce":
            return np.asarray(total) if rank == root else None
        case "reduce_scatter":
            return split(total, world)[rank]
        case "all_gather":
            return np.concatenate([split(values, world)[part] for part, values in enumerate(inputs)])
        case "gather":
            gathered = np.concatenate([split(values, world)[part] for part, values in enumerate(inputs)])
            return gathered if rank == root else None
        case "scatter":
            return split(inputs[root], world)[rank]
        case "all_to_all":
            # Parts of unequal length meet only where both sides call them equally long.
            return np.concatenate([split(values, world)[rank] for values in inputs])
        case "broadcast":
            return inputs[root]
        case "barrier":
            return np.zeros(1)


@pytest.mark.parametrize(("collective", "operation"), list(cases()))
@over_all("num_workers", WORLD_SIZES)
def test_the_schedule_gives_the_float64_result(collective: Collective, operation: Operation, num_workers: int) -> None:
    for world in worlds(collective, num_workers):
        for num_elements in NUMS_ELEMENTS:
            if operation == "all_to_all":
                num_elements -= num_elements % num_workers  # noqa: PLW2901 (only equal parts make a matrix of parts)
            root = num_elements % num_workers
            generator = np.random.default_rng(num_elements)
            # Whole numbers, so that the order of additions cannot matter.
            inputs = [generator.integers(-1000, 1000, num_elements).astype(np.float64) for _ in range(num_workers)]
            buffers = prepared(operation, world, root, inputs)
            every = schedules(collective, operation, world, num_elements, 8, root=root)
            num_messages = interpret(every, buffers)
            for rank in range(num_workers):
                wanted = expected(operation, world, inputs, rank, root)
                if wanted is not None:
                    np.testing.assert_array_equal(buffers[rank]["output"], wanted, f"n={num_elements}, {world}")
            counts = sent_bytes(collective, operation, world, num_elements, 8, root=root)
            assert sum(count.num_messages for count in counts.values()) == num_messages


@pytest.mark.parametrize("collective", list(collectives()), ids=str)
def test_everybody_waits_for_everybody(collective: Collective) -> None:
    """Every result of an operation that needs all ranks depends on a message from each, directly or not."""
    operations: tuple[Operation, ...] = ("barrier", "all_reduce")
    for operation, num_workers in itertools.product(operations, WORLD_SIZES[1:]):
        world = collective.world(num_workers)
        every = schedules(collective, operation, world, 1, 8)
        buffers: list[dict[Buffer, np.ndarray[Any, Any]]] = [
            {"output": np.array([1 << rank if rank < num_workers else 0])} for rank in range(world.size)
        ]
        interpret(every, buffers, reduce=np.bitwise_or)
        assert {int(buffer["output"][0]) for buffer in buffers[:num_workers]} == {(1 << num_workers) - 1}


@pytest.mark.parametrize(("collective", "operation"), list(cases()))
def test_no_time_is_below_the_bound(collective: Collective, operation: Operation) -> None:
    for num_workers in (2, 3, 8):
        for world in worlds(collective, num_workers):
            taken_s = alpha_beta_time_s(
                collective, operation, world, 4096, 4, alpha_s=1e-4, beta_s_per_byte=8e-9, gamma_s_per_byte=0.0
            )
            floor_s = bound_s(operation, world=world, size_bytes=16384, goodput_bps=1e9)
            assert taken_s >= floor_s * (1 - 1e-9) + (1e-4 if operation not in ("gather", "scatter") else 0.9e-4)


@pytest.mark.parametrize("collective", list(collectives()), ids=str)
def test_tensors_above_four_gigabytes_are_split_and_nothing_wraps(collective: Collective) -> None:
    num_elements = (1 << 30) + 3
    large = (
        collective.model_copy(update={"segment_bytes": 1 << 28}) if isinstance(collective, Segmented) else collective
    )
    world = large.world(3)
    received = [0] * world.size
    for participant, steps in enumerate(schedules(large, "all_reduce", world, num_elements, 4)):
        assert all(step.chunk.start >= 0 and step.chunk.count > 0 for step in steps)
        received[participant] = reach(steps, "output")
    assert received[:3] == [num_elements] * 3


def test_the_operations_are_those_of_the_interface() -> None:
    for collective in collectives():
        assert {"all_reduce"} <= collective.operations <= set(OPERATIONS)


BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
KINDS = [*OWN_KINDS, {"kind": "all_to_all", "exchange": "full"}, {"kind": "parameter_server", "servers": 2}]
CHANNEL_KINDS = ("memory", "tcp")


@functools.cache  # every rank looks at the same ones, and none may change its inputs
def values_of(dtype: torch.dtype, rank: int, num_elements: int) -> torch.Tensor:
    values = (torch.arange(num_elements) * 7 + rank * 3) % 5
    return values.to(dtype)


@functools.cache
def inputs_of(dtype: torch.dtype, num_elements: int, size: int) -> list[torch.Tensor]:
    return [values_of(dtype, rank, num_elements) for rank in range(size)]


@functools.cache
def reduced(op: str, dtype: torch.dtype, num_elements: int, size: int) -> torch.Tensor:
    """The reference, in float64 or int64 and back."""
    inputs = inputs_of(dtype, num_elements, size)
    wide = torch.float64 if inputs[0].is_floating_point() else torch.int64
    stack = torch.stack([values.to(wide) for values in inputs])
    if op in BITWISE:
        return functools.reduce(BITWISE[op], inputs)
    if inputs[0].dtype == torch.bool:
        return stack.amax(0).bool() if op in ("sum", "max") else stack.amin(0).bool()
    if op == "avg":
        total = stack.sum(0)
        mean = total / len(inputs) if total.is_floating_point() else total.div(len(inputs), rounding_mode="trunc")
        return mean.to(inputs[0].dtype)
    result = {"sum": stack.sum(0), "product": stack.prod(0), "min": stack.amin(0), "max": stack.amax(0)}[op]
    return result.to(inputs[0].dtype)


def every_operation(communicator: Communicator, *, with_every_type: bool = True) -> None:
    """Run everything with every type and compare with the reference: every way of reducing where there are elements
    enough to reduce some of them in a loop, and every root with some type of each number of elements.

    Not `with_every_type`, each way of reducing meets every third type, and each root half of the types."""
    rank, size = communicator.rank, communicator.size
    for number, name in enumerate(DTYPES):
        dtype = getattr(torch, name)
        for num_elements in (0, 1, 3, 1000):
            inputs = inputs_of(dtype, num_elements, size)
            # The parts of size^2 elements that a rank gathers and scatters.
            parts = inputs_of(dtype, num_elements * size, size)
            for which, op in enumerate(get_args(ReduceOperation) if num_elements > 1 else ("sum",)):
                if (op == "avg" and dtype == torch.bool) or (op in BITWISE and dtype.is_floating_point):
                    continue
                if not with_every_type and (which + number + size) % 3:
                    continue
                mine = inputs[rank].clone()
                communicator.all_reduce(mine, op).wait()
                assert torch.equal(mine, reduced(op, dtype, num_elements, size)), (name, num_elements, op)
                part, whole = torch.empty(num_elements, dtype=dtype), parts[rank].clone()
                communicator.reduce_scatter(part, whole, op).wait()
                assert torch.equal(
                    part, reduced(op, dtype, num_elements * size, size).view(size, num_elements)[rank]
                ), (name, num_elements, op)
                assert torch.equal(whole, parts[rank]), "the input was changed"
            if not with_every_type and number // size % 2:
                continue
            gathered = torch.empty(size * num_elements, dtype=dtype)
            communicator.all_gather(gathered, inputs[rank]).wait()
            assert torch.equal(gathered, torch.cat(inputs))
            root = number % size
            original = inputs[rank].clone()
            communicator.broadcast(original, root).wait()
            assert torch.equal(original, inputs[root])
            mine = inputs[rank].clone()
            communicator.reduce(mine, root, "max").wait()
            assert torch.equal(mine, reduced("max", dtype, num_elements, size) if rank == root else inputs[rank])
            output = torch.empty(size * num_elements, dtype=dtype) if rank == root else None
            communicator.gather(output, inputs[rank], root).wait()
            assert output is None or torch.equal(output, torch.cat(inputs))
            part = torch.empty(num_elements, dtype=dtype)
            communicator.scatter(part, parts[rank] if rank == root else None, root).wait()
            assert torch.equal(part, parts[root].view(size, num_elements)[rank])
            # Every pair another length, some of them none.
            lengths = torch.arange(size * size).view(size, size) % 4 * num_elements
            outputs = [torch.empty(int(lengths[other, rank]), dtype=dtype) for other in range(size)]
            sent = [values_of(dtype, rank + peer, int(lengths[rank, peer])) for peer in range(size)]
            communicator.all_to_all(outputs, sent).wait()
            for other, output in enumerate(outputs):
                assert torch.equal(output, values_of(dtype, other + rank, len(output)))
    communicator.barrier().wait()


@pytest.mark.parametrize("collective", KINDS)
def test_every_operation_and_type_gives_the_reference(collective: object) -> None:
    assert run_communicators(every_operation, 3, channel="tcp", collective=collective) == [None] * 3


OTHER_GROUPS = [*itertools.product([1, 2], CHANNEL_KINDS), (3, "memory"), (5, "tcp")]


@pytest.mark.parametrize(("size", "channel"), OTHER_GROUPS)
@pytest.mark.parametrize("collective", KINDS)
def test_in_groups_of_other_sizes_every_operation_gives_the_reference(
    collective: object, size: int, channel: str
) -> None:
    some = functools.partial(every_operation, with_every_type=False)
    assert run_communicators(some, size, channel=channel, collective=collective) == [None] * size


@pytest.mark.slow  # minutes; the schedules are those above, with types that go the same way
@pytest.mark.parametrize(("size", "channel"), [*OTHER_GROUPS, (5, "memory")])
@pytest.mark.parametrize("collective", KINDS)
def test_in_groups_of_other_sizes_every_type_gives_the_reference(collective: object, size: int, channel: str) -> None:
    assert run_communicators(every_operation, size, channel=channel, collective=collective) == [None] * size


@pytest.mark.parametrize("collective", ["ring", "tree", {"kind": "parameter_server", "servers": 2}])
def test_every_operation_and_type_gives_the_reference_over_several_connections(collective: object) -> None:
    channel = {"kind": "tcp", "streams": 3}
    assert run_communicators(every_operation, 3, channel=channel, collective=collective) == [None] * 3


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
@pytest.mark.parametrize("collective", KINDS)
def test_the_bytes_sent_are_the_schedule_s(collective: object, channel: str) -> None:
    size, num_elements = 4, 1_000_003

    def body(communicator: Communicator) -> dict[int, int]:
        communicator.all_reduce(torch.ones(num_elements)).wait()
        return {peer: counts.payload_bytes_sent for peer, counts in communicator.statistics().items()}

    counted = run_communicators(body, size, channel=channel, collective=collective)
    parsed = COLLECTIVES.parse(collective)
    expected_counts = sent_bytes(parsed, "all_reduce", parsed.world(size), num_elements, 4)
    header_bytes = CHANNELS[channel].header_bytes
    for (rank, peer), count in expected_counts.items():
        if rank < size:
            assert counted[rank].pop(peer) == count.payload_bytes + count.num_messages * header_bytes
    assert all(not num_bytes for rest in counted for num_bytes in rest.values())


@pytest.mark.parametrize("collective", KINDS)
def test_the_same_sum_comes_out_on_every_rank_to_the_last_bit(collective: object) -> None:
    def body(communicator: Communicator) -> torch.Tensor:
        values = torch.rand(100_003, generator=torch.Generator().manual_seed(communicator.rank))
        communicator.all_reduce(values).wait()
        return values

    first, *others = run_communicators(body, 5, channel="tcp", collective=collective)
    assert all(torch.equal(first, other) for other in others)
    again, *_ = run_communicators(body, 5, channel="tcp", collective=collective)
    assert torch.equal(first, again)


@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("num_rounds", [0, 2])
def test_who_leaves_in_mid_work_is_missed_by_everybody_at_once(collective: object, num_rounds: int) -> None:
    size, timeout_s = 3, 30.0

    def body(communicator: Communicator) -> int | None:
        values = torch.ones(300_000)
        for number in range(100):
            if communicator.rank == 1 and number == num_rounds:
                communicator.close()
                return None
            try:
                communicator.all_reduce(values).wait()
            except PeerLostError as error:
                return error.peer
        raise AssertionError("nobody noticed")

    started_s = time.monotonic()
    first, second, third = run_communicators(body, size, channel="tcp", collective=collective, timeout_s=timeout_s)
    assert second is None
    assert [first, third] == [1, 1]
    assert time.monotonic() - started_s < timeout_s / 2


@pytest.mark.parametrize("channel", ["memory", "tcp", "udp", "grpc"])
def test_servers_tell_whoever_waits_for_a_worker_that_never_began(channel: str) -> None:
    """The first worker, to whom servers listen for what is next."""

    def body(communicator: Communicator) -> int | None:
        if communicator.rank == 0:
            return None
        with pytest.raises(PeerLostError) as found:
            communicator.all_reduce(torch.ones(300_000)).wait()
        return found.value.peer

    servers = {"kind": "parameter_server", "servers": 2}
    assert run_communicators(body, 3, channel=channel, collective=servers, timeout_s=30.0) == [None, 0, 0]
