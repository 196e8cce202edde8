"""FSDP2 (`fully_shard`): parameters sharded, gathered layer by layer, gradients scattered."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main():
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64) for _ in range(3)), nn.Linear(64, 10))
    for block in list(model)[:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(1 + dist.get_rank())
    for step in range(5):
        x, y = torch.randn(32, 64), torch.randint(10, (32,))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}")
    print(f"rank {dist.get_rank()} done with {dist.get_backend()}")


if __name__ == "__main__":
    main()
    # In this order: torch 2.13 may hang when the last to let go of gloo's group is a model.
    gc.collect()
    dist.destroy_process_group()
