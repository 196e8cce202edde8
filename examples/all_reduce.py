"""torch.distributed without a model: time all_reduce of some sizes, check the sums, print bus bandwidth."""

import sys
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in (2**10, 2**16, 2**20):
        times = []
        for _ in range(5):
            tensor = torch.full((size // 4,), float(rank + 1))
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
            assert torch.all(tensor == world * (world + 1) / 2), "wrong sum"
        if rank == 0:
            best = min(times)
            print(f"{size:>9} B {1e3 * best:9.3f} ms {8 * size / best * 2 * (world - 1) / world / 1e6:9.1f} Mbit/s")

    # Subgroups and objects, as larger programs use them.
    evens = dist.new_group(range(0, world, 2))
    if rank % 2 == 0:
        value = torch.ones(1)
        dist.all_reduce(value, group=evens)
        assert value.item() == (world + 1) // 2
    names = [None] * world
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {each}" for each in range(world)]
    print(f"rank {rank} done with {dist.get_backend()}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
