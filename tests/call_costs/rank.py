"""One of two ranks: `python -m tests.call_costs.rank STORE RANK COUNTER CALL[,CALL] NUM_CALLS`. Rank 0 prints a line
for each way to call."""

import sys
import time
from collections.abc import Callable
from typing import Any

from tests.call_costs.counters import COUNTERS

NUM_WARMUP = 200


def synchronous(tensor: Any) -> None:
    """As a script does."""
    import torch.distributed as dist

    dist.all_reduce(tensor)


def bucket(tensor: Any) -> None:
    """As DistributedDataParallel does: its C++ calls the group's method, and waits for the future that C++ finds."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PythonCallbackWork

    group: Any = dist.group.WORLD
    PythonCallbackWork.get_future(group.allreduce([tensor], dist.AllreduceOptions())).wait()


def future(tensor: Any) -> None:
    """As a communication hook in Python does."""
    import torch.distributed as dist

    dist.all_reduce(tensor, async_op=True).get_future().wait()


def hooked(tensor: Any) -> None:
    """As a hook of ours does, with a job of its own."""
    import torch.distributed as dist

    dist.group.WORLD.submit("all_reduce", lambda transport: transport.all_reduce(tensor), tensor).wait()


CALLS: dict[str, Callable[[Any], None]] = {
    "synchronous": synchronous,
    "bucket": bucket,
    "future": future,
    "hooked": hooked,
}


def main(path: str, rank: int, counted: str, calls: str, num_calls: int) -> None:
    """Print what so many calls of each took of what is counted, per call, and the median time in microseconds."""
    count = COUNTERS[counted]() if counted in COUNTERS and rank == 0 else (lambda: 0)
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    import transports.torch_backend.autoload
    from transports.torch_backend.autoload import BACKEND

    del transports
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND, store=FileStore(path, 2), rank=rank, world_size=2)
    for call in calls.split(","):
        tensor, act = torch.zeros(1), CALLS[call]
        for _ in range(NUM_WARMUP):
            act(tensor)
        before, times_s = count(), []
        for _ in range(num_calls):
            begun_s = time.perf_counter()
            act(tensor)
            times_s.append(time.perf_counter() - begun_s)
        after = count()
        if rank == 0:
            sys.stdout.write(f"{call} {(after - before) / num_calls} {sorted(times_s)[num_calls // 2] * 1e6}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
