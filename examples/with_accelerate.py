"""Hugging Face accelerate, data parallel on CPUs, as `accelerate launch` would run it.

testbed exec --workers 2 --link 1gbit -- python examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    inputs = torch.randn(512, 32)
    labels = (inputs @ torch.randn(32, 4)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(2):
        total = torch.zeros(())
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.gather(total).mean() / len(loader)
        accelerator.print(f"epoch {epoch} loss {mean.item():.9f} on {accelerator.num_processes} processes")
    # In this order: torch 2.13 may hang when the last to let go of gloo's group is a model.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
