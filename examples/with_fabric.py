"""Lightning Fabric, data parallel on CPUs; it reads torchrun's variables by itself.

testbed exec --workers 2 --link 1gbit -- python examples/with_fabric.py
"""

import gc
import os

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    # A worker of the testbed is a host (a node, to Fabric) with one process.
    fabric = Fabric(accelerator="cpu", devices=1, num_nodes=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    inputs = torch.randn(512, 32)
    labels = (inputs @ torch.randn(32, 4)).argmax(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True))

    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            fabric.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = fabric.all_reduce(total / len(loader), reduce_op="mean")
        if fabric.is_global_zero:
            print(f"epoch {epoch} loss {mean.item():.9f} on {fabric.world_size} processes")


if __name__ == "__main__":
    main()
    # In this order: torch 2.13 may hang when the last to let go of gloo's group is a model.
    gc.collect()
    torch.distributed.destroy_process_group()
