"""Process groups that are made again over the same store, as after a failure or for another backend's options."""

import os
import time
from datetime import timedelta

import pytest

from tests.ranks import ADDRESS, Rank, run_ranks


def make_several(rank: Rank, channel: str) -> list[float]:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    os.environ["TESTBED_ADDRESS"], os.environ["TESTBED_CHANNEL"] = ADDRESS, channel
    store = FileStore(rank.store_path + "again", -1)
    found = []
    for number in range(3):
        if rank.rank == 0:
            time.sleep(0.5)  # the others look for its address meanwhile
        dist.init_process_group(
            "testbed", store=store, rank=rank.rank, world_size=rank.size, timeout=timedelta(seconds=20)
        )
        values = torch.full((4,), float(number))
        dist.all_reduce(values)
        if rank.rank == 1:
            dist.send(values, 0)
        elif rank.rank == 0:
            dist.recv(values, 1)
        found.append(float(values.sum()))
        dist.destroy_process_group()
    return found


@pytest.mark.parametrize("channel", ["tcp", "udp", "grpc"])
def test_a_group_that_is_made_again_meets_its_own_members(channel: str) -> None:
    """It read the addresses of the one before."""
    outcomes = run_ranks(make_several, 3, channel)
    assert [each.value for each in outcomes] == [[0.0, 12.0, 24.0]] * 3
