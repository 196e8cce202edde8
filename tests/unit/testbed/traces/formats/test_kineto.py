# mypy: disable-error-code="no-untyped-call"
"""What torch's profiler has written of two real ranks is read exactly: every operation, its bytes, its group."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.traces.formats.base import TraceError, read_trace
from testbed.traces.graph import Collective, Compute, Exchange, Graph, Receive, Send
from tests.ranks import Rank, join_group, run_ranks

COMPUTED_S = 0.02


def _operations(rank: Rank, *, described: bool) -> None:
    """`described`: with what only events with arguments say."""
    import torch
    import torch.distributed as dist

    me, size = rank.rank, rank.size
    matrix = torch.ones(700, 700)
    for _ in range(3):
        matrix = matrix @ matrix
    dist.all_reduce(torch.ones(3, 2))
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(4)])
    dist.reduce(torch.ones(5, dtype=torch.float64), 1)
    dist.broadcast(torch.ones(6, dtype=torch.int64), 0)
    dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2))
    dist.all_gather_single(torch.empty(3 * size, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))
    dist.reduce_scatter_single(torch.empty(8), torch.ones(8 * size))
    sent = [3, 5] if me == 0 else [5, 3]
    dist.all_to_all_single(torch.empty(8, 2), torch.ones(8, 2), sent, sent)
    # Rank 1 joins when rank 0 has computed beside the operation, however long that had to wait for a core.
    has_computed, deadline_s = Path(rank.store_path + "-computed"), time.monotonic() + 30
    while me == 1 and not has_computed.exists() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    matrix @ matrix
    has_computed.touch()
    work.wait()
    if me == 0:
        sending = [dist.isend(torch.ones(7), 1, tag=1), dist.isend(torch.ones(8), 1, tag=2)]
        for each in sending:
            each.wait()
    else:
        dist.recv(torch.empty(8), 0, tag=2)
        dist.recv(torch.empty(7), 0, tag=1)
    dist.barrier()
    if described:
        dist.gather(torch.ones(2), [torch.empty(2) for _ in range(size)] if me == 0 else None, 0)
        dist.scatter(torch.empty(4), [torch.ones(4) for _ in range(size)] if me == 1 else None, 1)
        given = ([torch.ones(1), torch.ones(2)], [torch.ones(1), torch.ones(3)])[me]
        made = ([torch.empty(1), torch.empty(1)], [torch.empty(2), torch.empty(3)])[me]
        dist.all_to_all(made, given)
        dist.all_reduce(torch.ones(9), group=dist.new_group([0, 1]))


def _profiled(rank: Rank, backend: str, described: bool) -> str:
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    join_group(rank, backend)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        _operations(rank, described=described)
    path = Path(f"{rank.store_path}.{rank.rank}.json")
    profiler.export_chrome_trace(str(path))
    dist.destroy_process_group()
    return path.read_text()


def _recorded(folder: Path, backend: str, *, described: bool = False) -> Path:
    for rank, outcome in enumerate(run_ranks(_profiled, 2, backend, described)):
        (folder / f"{rank}.json").write_text(outcome.value)
    return folder


def expected(rank: int, *, described: bool) -> list[Exchange]:
    splits = (6, 10) if rank == 0 else (10, 6)

    def whole(operation: Any, count: int, element_type: str = "float32", **more: Any) -> Collective:
        group = "world (0)" if described else "world"  # of two process groups of the same ranks each has its order
        return Collective(operation, count, element_type, group)._replace(**more)

    found: list[Exchange] = [
        whole("all_reduce", 6),
        whole("all_reduce", 6),
        whole("reduce", 5, "float64", root=1),
        whole("broadcast", 6, "int64", root=0),
        whole("all_gather", 4),
        whole("all_gather", 6, "bfloat16"),
        whole("reduce_scatter", 16),
        whole("all_to_all", 16, splits=splits),
        whole("all_reduce", 100_000),
        Send(1, 7, "float32", 1) if rank == 0 else Receive(0, 8, "float32", 2),
        Send(1, 8, "float32", 2) if rank == 0 else Receive(0, 7, "float32", 1),
        whole("barrier", 0, "uint8"),
    ]
    if described:
        parts = (1, 2) if rank == 0 else (1, 3)
        found += [
            whole("gather", 4, root=0),
            whole("scatter", 8, root=1),
            whole("all_to_all", sum(parts), splits=parts),
            whole("all_reduce", 9, group="world (1)"),
        ]
    return found


@pytest.mark.parametrize(("backend", "described"), [("gloo", False), ("testbed", True)])
def test_every_operation_of_two_real_ranks_and_its_bytes_are_found(
    tmp_path: Path, backend: str, described: bool
) -> None:
    graph = read_trace(_recorded(tmp_path, backend, described=described))
    assert isinstance(graph, Graph)
    assert graph.groups == dict.fromkeys(["world (0)", "world (1)"] if described else ["world"], (0, 1))
    for rank, nodes in enumerate(graph.ranks):
        exchanges = [node._replace(name="", after=()) for node in nodes if not isinstance(node, Compute)]
        assert exchanges == expected(rank, described=described)
        assert graph.compute_s(rank) > 0
        first, second = nodes[:2]
        assert isinstance(first, Compute), "three products come before the first operation, which waits for them"
        assert isinstance(second, Collective)
        assert second.after == (0,)


def test_what_computes_while_an_operation_is_under_way_does_not_wait_for_it(tmp_path: Path) -> None:
    graph = read_trace(_recorded(tmp_path, "testbed"))
    assert isinstance(graph, Graph)
    nodes = graph.ranks[0]
    large = next(number for number, node in enumerate(nodes) if getattr(node, "num_elements", 0) == 100_000)
    following = next(node for node in nodes[large + 1 :] if isinstance(node, Compute))
    assert large not in following.after


def event(name: str, begin_us: float, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": begin_us, "dur": 1, "args": arguments}


def described(name: str, begin_us: float = 5.0, **more: Any) -> dict[str, Any]:
    about = {"Collective name": name, "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2}
    return event("record_param_comms", begin_us, **{**about, "Process Group Ranks": "[0, 1]", **more})


def kernel(
    name: str, begin_us: float, length_us: float, *, stream: int = 7, **arguments: Any
) -> Callable[[int], dict[str, Any]]:
    return lambda rank: {**event(name, begin_us, **arguments), "cat": "kernel", "tid": stream, "dur": length_us}


def ranks(folder: Path, *events: Callable[[int], dict[str, Any]], world_size: int = 2) -> Path:
    for rank in range(2):
        data = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": world_size, "pg_count": 1},
            "traceEvents": [each(rank) for each in events],
        }
        (folder / f"{rank}.json").write_text(json.dumps(data))
    return folder


def test_nccls_kernels_that_repeat_the_arguments_are_not_counted_twice(tmp_path: Path) -> None:
    def kernel(rank: int) -> dict[str, Any]:
        return {**described("allreduce", 7.0), "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}

    def product(rank: int) -> dict[str, Any]:
        return {**event("gemm", 1.0), "cat": "kernel", "dur": 3}

    graph = read_trace(ranks(tmp_path, product, lambda rank: described("allreduce"), kernel))
    assert isinstance(graph, Graph)
    assert [type(node) for node in graph.ranks[0]] == [Compute, Collective]
    assert graph.compute_s(0) == pytest.approx(3e-6)


def test_nccls_roots_are_places_in_their_groups(tmp_path: Path) -> None:
    """torch writes no `Root Rank`: as ResNet-50's buffers were broadcast on an H100, its trace could not be read."""
    turned: dict[str, Any] = {"Process Group Ranks": "[1, 0]", "Rank": 0}
    graph = read_trace(
        ranks(tmp_path, lambda _: described("broadcast", 1.0, Rank=1), lambda _: described("reduce", **turned))
    )
    assert isinstance(graph, Graph)
    assert [node.root for node in graph.ranks[0] if isinstance(node, Collective)] == [1, 1]


def test_on_a_gpu_the_device_s_times_count(tmp_path: Path) -> None:
    """The processor launches the all-reduce in the first product; on the device it comes after both."""
    graph = read_trace(
        ranks(
            tmp_path,
            kernel("first", 0.0, 50.0),
            kernel("second", 50.0, 50.0),
            lambda rank: described("allreduce", 5.0, **{"External id": 9}),
            lambda rank: described("broadcast", 6.0, **{"External id": 8, "Root Rank": 0}),
            kernel("ncclDevKernel_Broadcast", 160.0, 5.0, **{"External id": 8}),
            kernel("ncclDevKernel_AllReduce", 100.0, 50.0, **{"External id": 9}),
            kernel("update", 150.0, 10.0),
        )
    )
    assert isinstance(graph, Graph)
    computed, reduced, updated, broadcast = graph.ranks[0]
    assert isinstance(computed, Compute)
    assert isinstance(updated, Compute)
    assert (computed.duration_s, updated.duration_s) == pytest.approx((100e-6, 10e-6))
    assert (reduced.after, updated.after, broadcast.after) == ((0,), (0, 1), (2,))
    assert [each.name for each in (reduced, broadcast)] == ["allreduce", "broadcast"]


def test_kernels_of_an_older_nccl_are_no_computing(tmp_path: Path) -> None:
    graph = read_trace(
        ranks(
            tmp_path,
            kernel("gemm", 0.0, 50.0),
            lambda rank: described("allreduce", 5.0, **{"External id": 9}),
            kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", 50.0, 500.0, **{"External id": 9}),
        )
    )
    assert isinstance(graph, Graph)
    computed, reduced = graph.ranks[0]
    assert (graph.compute_s(0), reduced.after) == (pytest.approx(50e-6), (0,))
    assert isinstance(computed, Compute)


def test_an_operator_that_contains_an_exchange_computes_before_and_after_it(tmp_path: Path) -> None:
    graph = read_trace(
        ranks(
            tmp_path,
            lambda rank: {**event("Row", 1000.0), "dur": 1000},
            lambda rank: {**described("allreduce", 1100.0), "dur": 800},
        )
    )
    assert isinstance(graph, Graph)
    before, reduced, after = graph.ranks[0]
    assert isinstance(before, Compute)
    assert isinstance(after, Compute)
    assert (before.duration_s, after.duration_s) == pytest.approx((100e-6, 100e-6))
    assert (reduced.after, after.after) == ((0,), (0, 1))


def test_a_kernel_that_goes_on_beside_an_exchange_is_not_waited_for_whole(tmp_path: Path) -> None:
    graph = read_trace(
        ranks(
            tmp_path,
            kernel("long", 0.0, 100.0),
            lambda rank: described("allreduce", 5.0, **{"External id": 9}),
            kernel("ncclDevKernel_AllReduce", 40.0, 90.0, stream=8, **{"External id": 9}),
        )
    )
    assert isinstance(graph, Graph)
    before, reduced, beside = graph.ranks[0]
    assert isinstance(before, Compute)
    assert isinstance(beside, Compute)
    assert (before.duration_s, beside.duration_s) == pytest.approx((40e-6, 60e-6))
    assert (reduced.after, beside.after) == ((0,), (0,))


def test_operators_of_threads_that_neither_communicate_nor_evaluate_gradients_are_no_computing(tmp_path: Path) -> None:
    def on(thread: int, name: str, begin_us: float) -> Callable[[int], dict[str, Any]]:
        return lambda rank: {**event(name, begin_us), "tid": thread}

    first, evaluates, communicates, loads = 1, 2, 3, 4
    graph = read_trace(
        ranks(
            tmp_path,
            on(first, "aten::mm", 1.0),
            on(evaluates, "autograd::engine::evaluate_function: MmBackward0", 2.0),
            on(communicates, "aten::mm", 3.0),
            on(loads, "aten::pin_memory", 4.0),
            lambda rank: {**described("allreduce"), "tid": communicates},
        )
    )
    assert isinstance(graph, Graph)
    assert graph.compute_s(0) == pytest.approx(3e-6)


def test_of_operations_in_a_row_each_waits_for_the_one_before_it(tmp_path: Path) -> None:
    """And not for all before it, which would be their number squared."""

    def lasting(begin_us: float, length_us: float) -> Callable[[int], dict[str, Any]]:
        return lambda rank: {**described("allreduce", begin_us), "dur": length_us}

    in_a_row = [lasting(10.0 * number, 5.0) for number in range(4)]
    overlapping = [lasting(40.0, 10.0), lasting(41.0, 1.0), lasting(43.0, 1.0), lasting(45.0, 1.0), lasting(51.0, 1.0)]
    graph = read_trace(ranks(tmp_path, *in_a_row, *overlapping))
    assert isinstance(graph, Graph)
    assert [node.after for node in graph.ranks[0][:4]] == [(), (0,), (1,), (2,)]
    assert [node.after for node in graph.ranks[0][4:]] == [(3,), (3,), (5,), (6,), (4, 7)]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (described("all_sum"), "operation 'all_sum' is not known; allowed: _allgather_base"),
        (described("allreduce", dtype="Complex"), "elements are of type 'Complex'"),
        (described("allreduce", **{"In msg nelems": -1}), "In msg nelems is -1"),
        (described("allreduce", **{"Group size": 3}), r"Process Group Ranks are \[0, 1\], and Group size is 3"),
        (described("broadcast"), "Rank is None"),
        (
            described("_allgather_base", **{"In msg nelems": 1, "Out msg nelems": 4}),
            "reads 1 elements and writes 4 among 2 ranks: parts that are not alike",
        ),
        (
            described(
                "allreduce", 5.0, **{"Group size": 31, "Process Group Ranks": f"{list(range(30))}"[:-1] + ", ...]"}
            ),
            "torch has cut off the list of its group's 31 ranks",
        ),
        (described("broadcast", Rank=2), "its root has place 2 in a group of 2"),
        (described("all_to_allv", **{"Out msg nelems": 4}), "it reads 8 elements and writes 4, and says no splits"),
        (event("record_param_comms", 5.0, **{"Collective name": []}), r"Collective name is \[\], which is not a word"),
        (described("send"), "Dst Rank is None"),
        ({**described("allreduce"), "ts": "now"}, "ts is 'now', which is not a number"),
        ({**described("allreduce"), "dur": -4}, "dur is -4; it is at least 0"),
        (event("aten::mm", 1.0), "no event says what is exchanged"),
        (event("c10d::allreduce_", 1.0), "c10d::allreduce_ has no event gloo:all_reduce of its shapes"),
        (event("c10d::gather_", 1.0), "operator 'c10d::gather_' is not known"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_event(tmp_path: Path, wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(ranks(tmp_path, lambda rank: wrong))
    assert str(caught.value).startswith(str(tmp_path))


def test_ranks_that_disagree_and_ranks_that_are_missing_are_refused(tmp_path: Path) -> None:
    def other(rank: int) -> dict[str, Any]:
        return described("allreduce", **{"In msg nelems": 8 + rank, "Out msg nelems": 8 + rank})

    with pytest.raises(TraceError, match="all_reduce of 9 float32 meets all_reduce of 8"):
        read_trace(ranks(tmp_path, other))
    with pytest.raises(TraceError, match="it is one of 4 ranks, and there are 2 files"):
        read_trace(ranks(tmp_path, lambda rank: described("allreduce"), world_size=4))


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_a_trace_is_valid_or_refused_with_its_place(tmp_path: Path, data: st.DataObject) -> None:
    ranks(tmp_path, lambda rank: event("aten::mm", 1.0), lambda rank: described("all_to_allv"))
    path = tmp_path / "0.json"
    text = path.read_text()
    begin = data.draw(st.integers(0, len(text)))
    more = data.draw(st.text(alphabet='0123456789-.,:{}[]"eEainfkd', max_size=3))
    path.write_text(text[:begin] + more + text[begin + data.draw(st.integers(0, 3)) :])
    try:
        read_trace(tmp_path)
        outcome = "valid"
    except TraceError as error:
        outcome = str(error)
    assert outcome == "valid" or str(tmp_path) in outcome
