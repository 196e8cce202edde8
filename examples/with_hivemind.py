"""hivemind: peers find each other in a distributed hash table and average their parameters, without a master.

testbed exec --workers 4 --link 100mbit,5ms -- python examples/with_hivemind.py

It speaks libp2p over TCP by a daemon of its own and knows nothing of torch.distributed: `--backend testbed` has no part
in it, and says so.
"""

import os
import time

import hivemind
import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def join(store):
    """The first peer is the one that the others contact; libp2p announces the address that it listens on."""
    own = os.environ.get("TESTBED_ADDRESS", "127.0.0.1")
    others = [] if RANK == 0 else store.get("peers").decode().split()
    dht = hivemind.DHT(initial_peers=others, host_maddrs=[f"/ip4/{own}/tcp/0"], start=True)
    if RANK == 0:
        store.set("peers", " ".join(map(str, dht.get_visible_maddrs())))
    return dht


def parameters(rank):
    torch.manual_seed(rank)
    return [torch.randn(64, 32), torch.randn(64)]


def main():
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, is_master=RANK == 0)
    dht = join(store)
    averager = hivemind.DecentralizedAverager(
        parameters(RANK),
        dht,
        prefix="example",
        target_group_size=WORLD,
        min_group_size=WORLD,
        min_matchmaking_time=3.0,
        start=True,
    )
    group = averager.step(timeout=60)
    assert group is not None, "no group came about"

    of_all = [parameters(rank) for rank in range(WORLD)]
    expected = [sum(each) / WORLD for each in zip(*of_all, strict=True)]
    with averager.get_tensors() as averaged:
        far = max((a - b).abs().max().item() for a, b in zip(averaged, expected, strict=True))
    print(f"rank {RANK} averaged with {len(group)} peers, {far:.1e} from the mean")
    assert far < 1e-6, "not the mean"
    store.set(f"done {RANK}", "")
    for rank in range(WORLD):
        store.get(f"done {rank}")
    averager.shutdown()
    dht.shutdown()
    if RANK == 0:
        time.sleep(1)  # whoever still reads from the store


if __name__ == "__main__":
    main()
