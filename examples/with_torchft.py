"""torchft: replicas that may come and go, averaging every few steps by LocalSGD or DiLoCo.

testbed exec --workers 2 --link 100mbit,5ms -- python examples/with_torchft.py --algorithm diloco

Each worker is a replica group of one. torchft makes its process groups itself, anew for every quorum, and not by
init_process_group: so `--group testbed` here, not `--backend testbed`, chooses ours.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.process_group import ProcessGroupWrapper

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIGHTHOUSE_PORT, STORE_PORT = 29510, 29511


class ProcessGroupTestbed(ProcessGroupWrapper):
    """As torchft's own wrappers do it, with what torch's registry of backends has under that name."""

    def _create_pg(self, store, rank, world_size):
        options = dist.distributed_c10d._DistributedBackendOptions()  # noqa: SLF001
        options.store, options.group_rank, options.group_size = store, rank, world_size
        options.timeout, options.group_id = self._timeout, f"quorum {self._quorum_id}"
        options.global_ranks_in_group = list(range(world_size))
        return dist.Backend._plugins["TESTBED"].creator_fn(options, None)  # noqa: SLF001

    def getBackendName(self):  # noqa: N802
        return "torchft-testbed"


def train(manager, model, algorithm):
    torch.manual_seed(1 + RANK)  # each its own data
    inputs = torch.randn(512, 32)
    labels = (inputs @ torch.linspace(-1, 1, 128).reshape(32, 4)).argmax(1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if algorithm == "local_sgd":
        synchronised = LocalSGD(manager, model, inner, sync_every=4)
    else:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        synchronised = DiLoCo(manager, [model], inner, outer, sync_every=4)
    with synchronised:
        while manager.current_step() < 4:
            mine = torch.randint(512, (32,))
            inner.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[mine]), labels[mine])
            loss.backward()
            inner.step()
    return nn.functional.cross_entropy(model(inputs), labels).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=("local_sgd", "diloco"), default="local_sgd")
    parser.add_argument("--group", choices=("gloo", "testbed"), default="gloo")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    meeting = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, is_master=RANK == 0)
    if RANK == 0:
        lighthouse = LighthouseServer(bind=f"[::]:{LIGHTHOUSE_PORT}", min_replicas=WORLD, join_timeout_ms=20_000)
        meeting.set("lighthouse", f"http://{os.environ['MASTER_ADDR']}:{LIGHTHOUSE_PORT}")
    own = os.environ.get("TESTBED_ADDRESS", "127.0.0.1")
    store = dist.TCPStore(own, STORE_PORT + RANK, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=(ProcessGroupGloo if args.group == "gloo" else ProcessGroupTestbed)(timeout=timedelta(seconds=30)),
        min_replica_size=WORLD,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        use_async_quorum=False,
        init_sync=False,
        replica_id=f"replica{RANK}",
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=STORE_PORT + RANK,
        lighthouse_addr=meeting.get("lighthouse").decode(),
    )
    loss = train(manager, model, args.algorithm)
    print(f"rank {RANK} loss {loss:.9f} after {manager.current_step()} steps of {args.algorithm}")

    meeting.set(f"sum {RANK}", repr([parameter.double().sum().item() for parameter in model.parameters()]))
    sums = {meeting.get(f"sum {rank}") for rank in range(WORLD)}
    assert len(sums) == 1, "replicas differ"
    meeting.set(f"done {RANK}", "")
    for rank in range(WORLD):
        meeting.get(f"done {rank}")
    manager.shutdown()
    del store
    if RANK == 0:
        lighthouse.shutdown()


if __name__ == "__main__":
    main()
