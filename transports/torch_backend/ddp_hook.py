"""Compressed gradients for DistributedDataParallel, as a communication hook.

    import torch.distributed as dist
    from transports import ddp_hook

    dist.init_process_group("testbed")
    model = DistributedDataParallel(model)
    ddp_hook.register(model, {"kind": "top_k", "ratio": 0.01})

A hook sees parameters, so that codecs can keep a state for each. A whole exchange, all its phases, is one job of the
communication thread: hooks that start one collective after the other mix up their buckets (pytorch issue 58467).
"""

from dataclasses import dataclass

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from transports.compression.base import COMPRESSORS, Piece
from transports.errors import OptionError
from transports.execution.gradients import GradientCompression, require_compressible
from transports.torch_backend.process_group import TestbedProcessGroup


def register(model: DistributedDataParallel, compression: object, *, seed: int = 0) -> None:
    """Compress a model's gradients: `"top_k"`, `{"kind": "top_k", "ratio": 0.01}` or a Compressor.

    The model's group must be of the backend `testbed`, `seed` the same on all ranks, and gradients of float32, float16
    or bfloat16 (`none` takes float64, too). Raises OptionError, or pydantic's ValidationError.
    """
    group = model.process_group
    if not isinstance(group, TestbedProcessGroup):
        raise OptionError(f"gradients are compressed on the backend `testbed`; this model's group is {group.name()}")
    compressor = COMPRESSORS.parse(compression)
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad:
            require_compressible(compressor, parameter.dtype, f"parameter {name}")
    compression_of_rank = GradientCompression(compressor, rank=group.rank(), num_workers=group.size(), seed=seed)
    model.register_comm_hook(_State(group, compression_of_rank), _hook)


def reduce_bucket(
    group: TestbedProcessGroup, compression: GradientCompression, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A bucket's undivided gradients become their mean over the group; completes with the bucket's buffer."""
    buffer = bucket.buffer()
    layout = [
        Piece(parameter, tuple(gradient.shape))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]
    return group.submit("all_reduce", lambda transport: compression.reduce(transport, buffer, layout), buffer)


@dataclass(frozen=True, slots=True)
class _State:
    group: TestbedProcessGroup
    compression: GradientCompression


def _hook(state: _State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return reduce_bucket(state.group, state.compression, bucket)
