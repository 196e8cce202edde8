"""What torch's profiler, and a trace that it has written, say of operations of ours and of gloo's."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import Rank, join_group, run_ranks
from transports.torch_backend.profiling import PARAMETERS

LATE_S = 0.3


def _trace(rank: Rank, action: Callable[[], None], **options: Any) -> list[dict[str, Any]]:
    """The events of a trace that the profiler has written of an action."""
    from torch.profiler import ProfilerActivity, profile

    path = Path(f"{rank.store_path}.{rank.rank}.json")
    with profile(activities=[ProfilerActivity.CPU], **({"record_shapes": True} | options)) as profiler:
        action()
    profiler.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def _every_operation(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    size, me = rank.size, rank.rank
    dist.all_reduce(torch.ones(3, 2))
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(4)])
    dist.reduce(torch.ones(5), 1)
    dist.broadcast(torch.ones(6, dtype=torch.int64), 0)
    dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2))
    dist.all_gather_single(torch.empty(3 * size), torch.ones(3))
    dist.gather(torch.ones(2), [torch.empty(2) for _ in range(size)] if me == 0 else None, 0)
    dist.scatter(torch.empty(4), [torch.ones(4) for _ in range(size)] if me == 0 else None, 0)
    dist.all_to_all_single(torch.empty(2 * size), torch.ones(2 * size))
    dist.barrier()
    if me == 0:
        dist.send(torch.ones(7), 1)
    else:
        dist.recv(torch.empty(7), 0)


def _both(rank: Rank) -> dict[str, Any]:
    import torch.distributed as dist

    results = {}
    for backend in ("gloo", "testbed"):
        join_group(rank, backend)
        events = _trace(rank, lambda: _every_operation(rank))
        results[backend] = sorted(
            (event["name"].partition(":")[2], event["args"].get("Input Dims"), event["args"].get("Input type"))
            for event in events
            if event["name"].startswith(f"{backend}:") and event["cat"] == "user_annotation"
        )
        dist.destroy_process_group()
    return results


def test_operations_have_the_names_shapes_and_types_that_gloo_s_have() -> None:
    for outcome in run_ranks(_both, 2):
        assert outcome.value["testbed"] == outcome.value["gloo"]
        assert len(outcome.value["testbed"]) == 11


def _parameters(rank: Rank) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    join_group(rank, "testbed")
    group = dist.new_group([0, 2], group_desc="outer")

    def action() -> None:
        dist.all_reduce(torch.ones(3, 2))
        dist.reduce_scatter_single(torch.empty(2, dtype=torch.bfloat16), torch.ones(6, dtype=torch.bfloat16))
        splits = [1, 2, 3]
        dist.all_to_all_single(torch.empty(3 * (rank.rank + 1)), torch.ones(6), [rank.rank + 1] * 3, splits)
        if rank.rank != 1:
            dist.broadcast(torch.ones(4, dtype=torch.int64), 2, group=group, async_op=True).wait()
            if rank.rank == 0:
                dist.send(torch.ones(5), 2, group=group, tag=7)
            else:
                dist.recv(torch.empty(5), 0, group=group, tag=7)

    events = [event["args"] for event in _trace(rank, action) if event["name"] == PARAMETERS]
    dist.destroy_process_group()
    return events


def test_what_trace_tools_read_of_nccl_s_operations_is_there() -> None:
    outcomes = [outcome.value for outcome in run_ranks(_parameters, 3)]
    assert len(outcomes[1]) == 3
    all_reduce, reduce_scatter, all_to_all, broadcast, message = outcomes[2]
    expected = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 6,
        "Out msg nelems": 6,
        "Group size": 3,
        "Rank": 2,
        "Global rank start": 0,
        "Global rank stride": 1,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2]",
        "In split size": "[]",
        "Out split size": "[]",
        "Is asynchronized op": False,
    }
    assert {key: all_reduce[key] for key in expected} == expected
    assert (reduce_scatter["Collective name"], reduce_scatter["dtype"]) == ("_reduce_scatter_base", "BFloat16")
    assert (reduce_scatter["In msg nelems"], reduce_scatter["Out msg nelems"]) == (6, 2)
    assert (all_to_all["In split size"], all_to_all["Out split size"]) == ("[1, 2, 3]", "[3, 3, 3]")
    assert (broadcast["Group size"], broadcast["Rank"], broadcast["Global rank stride"]) == (2, 1, 2)
    assert (broadcast["Process Group Ranks"], broadcast["Process Group Description"]) == ("[0, 2]", "outer")
    assert (broadcast["Root Rank"], broadcast["Is asynchronized op"]) == (2, True)
    assert (message["Collective name"], message["Src Rank"], message["Out msg nelems"]) == ("recv", 0, 5)
    assert message["Tag"] == 7


def _late(rank: Rank) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.autograd import profiler

    join_group(rank, "testbed")
    disable = profiler._disable_profiler  # type: ignore[attr-defined]  # its name is not exported
    dist.all_reduce(torch.ones(2))
    results: dict[str, Any] = {"untouched": disable is profiler._disable_profiler}  # type: ignore[attr-defined]  # as above

    begun = Path(f"{rank.store_path}.begun")

    def action() -> None:
        if rank.rank == 1:
            deadline_s = time.monotonic() + 20
            while not begun.exists() and time.monotonic() < deadline_s:  # profilers begin at different times
                time.sleep(0.005)
            time.sleep(LATE_S)
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None
        begun.touch()
        work.get_future().wait()

    (event,) = [event for event in _trace(rank, action) if event["name"] == "testbed:all_reduce"]
    results["duration_s"] = event["dur"] / 1e6

    def leave_open() -> None:
        if rank.rank == 0:
            results["work"] = dist.all_reduce(torch.ones(2), async_op=True)

    left = _trace(rank, leave_open, record_shapes=False)
    results["left open"] = [event["name"] for event in left if event["name"].startswith("testbed:")]
    dist.monitored_barrier()
    work = results.pop("work", None) or dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    results["after"] = work.result()[0].tolist()
    with torch.autograd.profiler.profile(record_shapes=True) as profiled:
        for _ in range(20):
            dist.all_reduce(torch.ones(2))
    events = [event for event in profiled.function_events if event.name == "testbed:all_reduce"]
    results["asynchronous"] = [event.is_async for event in events]
    dist.destroy_process_group()
    return results


def _late_redirected(rank: Rank) -> dict[str, Any]:
    from transports.torch_backend.redirection import install

    record = Path(f"{rank.store_path}.redirected")
    record.touch()
    install("testbed", record)
    return _late(rank)


@pytest.fixture(scope="module")
def late() -> list[dict[str, Any]]:
    return [outcome.value for outcome in run_ranks(_late_redirected, 2)]


def test_an_event_lasts_from_the_call_to_the_completion(late: list[dict[str, Any]]) -> None:
    assert late[0]["duration_s"] >= LATE_S
    assert late[1]["duration_s"] < late[0]["duration_s"]


def test_an_operation_under_way_when_the_profiler_stops_is_cut_off_there(late: list[dict[str, Any]]) -> None:
    """With gloo torch writes into freed memory when it ends."""
    assert late[0]["left open"] == ["testbed:all_reduce"]
    assert late[1]["left open"] == []
    assert all(result["after"] == [2.0, 2.0] for result in late)


def test_every_event_is_an_asynchronous_one_however_fast_the_operation_was(late: list[dict[str, Any]]) -> None:
    assert all(result["asynchronous"] == [True] * 20 for result in late)


def test_without_a_profiler_nothing_of_torch_s_is_touched(late: list[dict[str, Any]]) -> None:
    assert all(result["untouched"] for result in late)


def _ending_while_the_profiler_stops(_: Rank) -> list[str]:
    import torch

    from transports.torch_backend.profiling import _open_events

    order: list[str] = []
    at, gate = threading.Event(), threading.Event()

    def linger(_: object) -> None:
        at.set()
        gate.wait(20)
        order.append("ended")

    with torch.autograd.profiler.profile():
        event = torch.autograd._record_function_with_args_enter("testbed:all_reduce")  # type: ignore[attr-defined]  # not exported
        ended = _open_events.add(event)
        ended.add_done_callback(linger)
        completion = threading.Thread(target=_open_events.end, args=[ended])
        completion.start()
        assert at.wait(20)
        threading.Timer(0.2, gate.set).start()
    order.append("stopped")
    completion.join()
    return order


def test_the_profiler_stops_when_what_is_just_ending_has_ended() -> None:
    """Freed while another thread ended it, an event crashed one in 1,500 operations that were waited for."""
    (outcome,) = run_ranks(_ending_while_the_profiler_stops, 1)
    assert outcome.value == ["ended", "stopped"]


def _failing(rank: Rank) -> list[str]:
    import torch
    import torch.distributed as dist

    join_group(rank, "testbed")
    group = dist.group.WORLD
    assert group is not None
    group.shutdown()

    def action() -> None:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(2))
        with pytest.raises(ValueError, match="cannot be exchanged"):
            dist.new_group([rank.rank]).allreduce([torch.ones(2, dtype=torch.complex32)])

    return [event["name"] for event in _trace(rank, action)]


def test_an_operation_that_is_refused_has_an_event_and_the_same_error() -> None:
    (outcome,) = run_ranks(_failing, 1)
    assert outcome.value.count("testbed:all_reduce") == 2


def _trained(rank: Rank) -> list[str]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from transports.torch_backend import ddp_hook

    join_group(rank, "testbed")
    plain = DistributedDataParallel(torch.nn.Linear(10, 10))
    hooked = DistributedDataParallel(torch.nn.Linear(10, 10))
    ddp_hook.register(hooked, {"kind": "top_k", "ratio": 0.5})

    def action() -> None:
        for model in (plain, hooked):
            model(torch.ones(3, 10)).sum().backward()

    names = [event["name"] for event in _trace(rank, action)]
    dist.destroy_process_group()
    return names


def test_gradients_of_ddp_are_seen_with_and_without_a_hook() -> None:
    for outcome in run_ranks(_trained, 2):
        assert outcome.value.count("testbed:all_reduce") == 2
