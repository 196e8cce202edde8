"""Whatever opens a communicator gives the same results behind the same face."""

import queue
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.ranks import ADDRESS, Rank, run_ranks
from transports.baselines.base import STACKS
from transports.errors import OptionError, TransportError

STACK_NAMES = ["ring/tcp", *STACKS.kinds()]
NUM_RANKS = 3


def _open(rank: Rank, name: str, traces: list[Any], timeout_s: float = 20.0) -> Any:
    from torch._C._distributed_c10d import FileStore

    from transports.bench.stacks import parse_stack
    from transports.group import Group

    group = Group(
        name="bench",
        rank=rank.rank,
        size=rank.size,
        address=ADDRESS,
        store=FileStore(rank.store_path, rank.size),
        timeout_s=timeout_s,
    )
    return parse_stack(name).open(group, traces.append)


def _everything(rank: Rank, name: str) -> dict[str, Any]:
    import torch

    traces: list[Any] = []
    communicator = _open(rank, name, traces)
    assert (communicator.rank, communicator.size) == (rank.rank, rank.size)
    results: dict[str, Any] = {}
    for operation in ("sum", "avg", "min", "max", "product"):
        tensor = torch.arange(1000.0) % 5 + rank.rank + 1
        communicator.all_reduce(tensor, operation).wait()
        results[operation] = tensor.numpy().copy()
    tensor = torch.full((7,), float(rank.rank))
    communicator.broadcast(tensor, 2).wait()
    results["broadcast"] = tensor.tolist()
    output = torch.empty(2 * rank.size)
    communicator.all_gather(output, torch.full((2,), float(rank.rank))).wait()
    results["all_gather"] = output.tolist()
    part = torch.empty(2)
    communicator.reduce_scatter(part, torch.arange(2.0 * rank.size) + rank.rank).wait()
    results["reduce_scatter"] = part.tolist()

    root, whole = rank.rank == 1, torch.arange(2.0 * rank.size)
    communicator.gather(gathered := whole.new_empty(len(whole)) if root else None, part, 1).wait()
    results["gather"] = None if gathered is None else gathered.tolist()
    communicator.scatter(part, whole if root else None, 1).wait()
    results["scatter"] = part.tolist()

    ended: list[BaseException | None] = []
    work = communicator.all_reduce(torch.ones(10))
    work.add_done_callback(ended.append)
    work.wait(10.0)
    assert work.done()
    communicator.barrier().wait()
    deadline_s = time.monotonic() + 20.0
    while len(ended) < 1 or len(traces) < 12:
        assert time.monotonic() < deadline_s, (ended, traces)
        time.sleep(0.001)
    results["callback"] = ended
    results["traces"] = [(trace.operation, trace.size_bytes) for trace in traces]
    results["in order"] = all(
        trace.enqueued_s <= trace.started_s <= trace.first_byte_s <= trace.done_s for trace in traces
    )
    communicator.close()
    communicator.close()
    return results


@pytest.mark.parametrize("name", STACK_NAMES)
def test_every_stack_gives_the_same_results(name: str) -> None:
    inputs = np.stack([np.arange(1000.0) % 5 + rank + 1 for rank in range(NUM_RANKS)])
    expected = {
        "sum": inputs.sum(0),
        "avg": inputs.mean(0),
        "min": inputs.min(0),
        "max": inputs.max(0),
        "product": inputs.prod(0),
    }
    for rank, outcome in enumerate(run_ranks(_everything, NUM_RANKS, name)):
        for operation, value in expected.items():
            np.testing.assert_allclose(outcome.value[operation], value, rtol=1e-6, err_msg=operation)
        assert outcome.value["broadcast"] == [2.0] * 7
        assert outcome.value["all_gather"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
        assert outcome.value["reduce_scatter"] == [3.0 * (2 * rank) + 3, 3.0 * (2 * rank + 1) + 3]
        assert outcome.value["gather"] == ([3.0 * each + 3 for each in range(6)] if rank == 1 else None)
        assert outcome.value["scatter"] == [2.0 * rank, 2.0 * rank + 1]
        assert outcome.value["callback"] == [None]
        assert sorted(outcome.value["traces"]) == sorted(
            [("all_reduce", 4000)] * 5
            + [("broadcast", 28), ("all_gather", 24), ("reduce_scatter", 24), ("gather", 24), ("scatter", 24)]
            + [("all_reduce", 40), ("barrier", 0)]
        )
        assert outcome.value["in order"]


def _average_of_whole_numbers(rank: Rank, name: str) -> list[int]:
    import torch

    communicator = _open(rank, name, [])
    values = torch.tensor([-4, 4]) if rank.rank == 0 else torch.zeros(2, dtype=torch.int64)
    communicator.all_reduce(values, "avg").wait()
    communicator.barrier().wait()
    communicator.close()
    return [int(each) for each in values]


@pytest.mark.parametrize("name", ["ring/tcp", "openmpi"])
def test_averages_of_whole_numbers_are_rounded_towards_zero(name: str) -> None:
    """By those that divide: torch's gloo refuses them, whose quotients are no whole numbers."""
    for outcome in run_ranks(_average_of_whole_numbers, NUM_RANKS, name):
        assert outcome.value == [-1, 1]


def _outputs_given_back(rank: Rank, name: str) -> list[list[float]]:
    """What the caller has put into outputs since it waited for them."""
    import torch

    communicator = _open(rank, name, [])
    part, parts = torch.empty(2), [torch.empty(1) for _ in range(rank.size)]
    for start, outputs in (
        (lambda: communicator.reduce_scatter(part, torch.ones(2 * rank.size)), [part]),
        (lambda: communicator.all_to_all(parts, [torch.ones(1) for _ in parts]), parts),
    ):
        for _ in range(20):
            work = start()
            work.wait()
            for output in outputs:
                output.fill_(-1.0)
            work.wait()
    time.sleep(0.2)  # whoever else waits, for the traces, has done so
    communicator.barrier().wait()
    communicator.close()
    return [output.tolist() for output in (part, *parts)]


@pytest.mark.parametrize("name", STACK_NAMES)
def test_what_was_waited_for_is_the_callers(name: str) -> None:
    """gloo's reduce_scatter copied its result once more, for the trace: over that of the next operation."""
    for outcome in run_ranks(_outputs_given_back, NUM_RANKS, name):
        assert outcome.value == [[-1.0, -1.0]] + [[-1.0]] * NUM_RANKS


def _outputs_at_the_end(rank: Rank, name: str) -> list[list[float]]:
    """What the outputs of an all_to_all hold when the two kinds of callbacks are called; nobody waits for the work."""
    import torch

    communicator = _open(rank, name, [])
    seen: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
    for kind in ("add_done_callback", "add_end_callback"):
        outputs = [torch.zeros(1) for _ in range(rank.size)]
        inputs = [torch.tensor([10.0 * rank.rank + peer]) for peer in range(rank.size)]
        work = communicator.all_to_all(outputs, inputs)
        getattr(work, kind)(lambda _, outputs=outputs: seen.put([output.item() for output in outputs]))
    found = [seen.get(timeout=20) for _ in range(2)]
    communicator.barrier().wait()
    communicator.close()
    return found


@pytest.mark.parametrize("name", STACK_NAMES)
def test_results_are_there_when_callbacks_are_called(name: str) -> None:
    for rank, outcome in enumerate(run_ranks(_outputs_at_the_end, NUM_RANKS, name)):
        assert outcome.value == [[10.0 * peer + rank for peer in range(NUM_RANKS)]] * 2


def _peer_leaves(rank: Rank, name: str) -> dict[str, Any]:
    import torch

    communicator = _open(rank, name, [])
    communicator.barrier().wait()
    if rank.rank == 1:
        communicator.close()
        return {}
    ended: list[BaseException | None] = []
    work = communicator.all_reduce(torch.ones(1 << 20))
    work.add_done_callback(ended.append)
    try:
        work.wait()
    except Exception as error:  # noqa: BLE001 - each stack has errors of its own
        return {"error": repr(error)}
    return {"error": ""}


@pytest.mark.parametrize("name", STACK_NAMES)
def test_an_operation_fails_when_a_member_has_left(name: str) -> None:
    outcomes = run_ranks(_peer_leaves, NUM_RANKS, name, check=name != "openmpi")
    for survivor in (outcomes[0], outcomes[2]):
        # Open MPI ends the process itself a moment later, and may be the first to know.
        assert survivor.value["error"] if survivor.value else survivor.exit_status


def _mpi_twice(rank: Rank) -> str:
    communicator = _open(rank, "openmpi", [])
    communicator.barrier().wait()
    try:
        _open(rank, "openmpi", [])
    except OptionError as error:
        return str(error)
    finally:
        communicator.close()
    return ""


def test_a_process_can_be_in_one_mpi_job() -> None:
    assert all("once in a process" in outcome.value for outcome in run_ranks(_mpi_twice, 2))


def _chosen(rank: Rank) -> list[float]:
    import torch

    communicator = _open(rank, "openmpi:algorithm=ring:wait=poll", [])
    tensor = torch.full((3, 4), float(rank.rank)).t()  # not in one piece
    communicator.all_reduce(tensor).wait()
    with pytest.raises(OptionError, match="MPI does not reduce bfloat16"):
        communicator.all_reduce(torch.ones(3, dtype=torch.bfloat16))
    parts = [torch.full((peer + 1,), float(rank.rank)) for peer in range(rank.size)]
    received = [torch.zeros(rank.rank + 1) for _ in range(rank.size)]
    communicator.all_to_all(received, parts).wait()
    communicator.reduce(summed := torch.ones(5), 1).wait()
    communicator.close()
    return [float(tensor.sum()), *(float(part.mean()) for part in received), float(summed.sum())]


def test_openmpi_takes_the_algorithm_and_tensors_of_any_shape() -> None:
    first, second = (outcome.value for outcome in run_ranks(_chosen, 2))
    assert (first, second) == ([12.0, 0.0, 1.0, 5.0], [12.0, 0.0, 1.0, 10.0])


def _one_fails(rank: Rank) -> list[float]:
    import torch

    communicator, queued = _open(rank, "openmpi", []), threading.Event()

    def fails(_: Any) -> None:
        queued.wait()
        raise ValueError("it fails")

    first = communicator._submit("failing", 0, fails)
    tensor = torch.ones(3)
    second = communicator.all_reduce(tensor)
    queued.set()
    for work in (first, second):
        with pytest.raises(TransportError, match="failing over MPI: it fails"):
            work.wait()
    time.sleep(0.5)  # in which it could be done all the same
    found = [float(each) for each in tensor]
    communicator.close()
    return found


def test_what_openmpi_has_said_to_have_failed_it_does_not_do_later() -> None:
    """The tensors are their owners' again."""
    assert [outcome.value for outcome in run_ranks(_one_fails, 2, check=False)] == [[1.0] * 3] * 2


def test_gloo_refuses_a_store_that_is_not_torchs() -> None:
    from transports.bench.stacks import parse_stack
    from transports.channels.memory import MemoryStore
    from transports.group import Group

    group = Group(name="bench", rank=0, size=1, address=ADDRESS, store=MemoryStore(), timeout_s=5.0)
    with pytest.raises(OptionError, match="FileStore"):
        parse_stack("gloo").open(group)
