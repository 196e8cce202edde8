"""DeepSpeed's ZeRO on CPUs: optimizer states (stage 1), gradients (2) and parameters (3) sharded over the workers.

testbed exec --workers 2 --link 1gbit -- python examples/with_deepspeed.py --stage 3
"""

import argparse
import gc

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2, choices=(1, 2, 3))
    args = parser.parse_args()

    # For CPUs DeepSpeed would compile an extension that adds in memory shared by the processes of one host.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(512, 32)
    labels = (inputs @ torch.randn(32, 4)).argmax(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "zero_optimization": {"stage": args.stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    for step in range(10):
        mine = torch.arange(16) + 16 * (step * world + rank)
        loss = nn.functional.cross_entropy(engine(inputs[mine % 512]), labels[mine % 512])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.9f} on {world} processes, stage {args.stage}")
    engine.destroy()


if __name__ == "__main__":
    main()
    # In this order: torch 2.13 may hang when the last to let go of gloo's group is a model.
    gc.collect()
    dist.destroy_process_group()
