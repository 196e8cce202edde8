"""Plain DistributedDataParallel: torchrun, or `testbed exec --workers 2 -- python examples/ddp.py`.

`--backend testbed` trains over this project's transports, on any cluster (docs/cluster.md).
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    args = parser.parse_args()

    dist.init_process_group(backend=args.backend)
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    inputs = torch.randn(1024, 64)
    labels = (inputs @ torch.randn(64, 10)).argmax(1)
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    layers = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10))
    model = DistributedDataParallel(layers.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach().cpu()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / dist.get_world_size():.4f}")

    weight = next(model.parameters()).detach().sum().reshape(1)
    gathered = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weight)
    assert all(torch.equal(each, weight) for each in gathered), "replicas differ"
    print(f"rank {rank} done with {dist.get_backend()}")


if __name__ == "__main__":
    main()
    # In this order: torch 2.13 may hang when the last to let go of gloo's group is a model.
    gc.collect()
    dist.destroy_process_group()
