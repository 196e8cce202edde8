# mypy: disable-error-code="no-untyped-call"
"""Compressed DistributedDataParallel over loopback, in processes of their own: our hook, torch's, the group itself."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.ranks import Rank, run_ranks

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

NUM_ITERATIONS = 12
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "top_k": {"kind": "top_k", "ratio": 0.1},
    "powersgd": {"kind": "powersgd"},
    "int8": {"kind": "int8"},
    "int8 in two phases": {"kind": "int8", "exchange": "two_phase", "error_feedback": True},
}


def _join(rank: Rank, **environment: str) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from transports import autoload

    os.environ.update(TESTBED_ADDRESS="127.0.0.1", **environment)
    autoload.register()
    store = FileStore(f"{rank.store_path}-{len(environment)}", rank.size)
    dist.init_process_group("testbed", store=store, rank=rank.rank, world_size=rank.size)


def _model(bucket_cap_mb: float) -> "DistributedDataParallel":
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    return DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb)


def _train(model: "DistributedDataParallel", rank: Rank) -> dict[str, Any]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(rank.rank)
    inputs = torch.randn(64, 20, generator=generator)
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    losses = []
    for _ in range(NUM_ITERATIONS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
    return {"losses": losses, "parameters": parameters.numpy().copy()}


def _hooks(rank: Rank) -> dict[str, dict[str, Any]]:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from transports import ddp_hook
    from transports.errors import OptionError

    _join(rank)
    found = {"none": _train(_model(0.01), rank)}
    for name, compression in COMPRESSIONS.items():
        model = _model(0.01)
        ddp_hook.register(model, compression)
        found[name] = _train(model, rank)
    model = _model(0.01)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    found["torch fp16"] = _train(model, rank)
    model = _model(25.0)  # torch's PowerSGD mixes up several buckets, on any backend
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    found["torch PowerSGD"] = _train(model, rank)
    try:
        ddp_hook.register(_model(25.0), "zip")
    except OptionError as error:
        found["refused"] = {"text": str(error)}
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def workers() -> list[dict[str, dict[str, Any]]]:
    return [outcome.value for outcome in run_ranks(_hooks, 2)]


@pytest.mark.parametrize("kind", ["none", *COMPRESSIONS, "torch fp16", "torch PowerSGD"])
def test_ranks_stay_identical_and_learn(workers: list[dict[str, dict[str, Any]]], kind: str) -> None:
    first, second = (worker[kind] for worker in workers)
    assert np.array_equal(first["parameters"], second["parameters"])
    assert first["losses"][-1] < 0.9 * first["losses"][0]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("int8", 1e-2), ("int8 in two phases", 1e-2), ("torch fp16", 1e-3), ("top_k", 0.3), ("powersgd", 0.3)],
)
def test_what_is_learned_is_near_to_what_is_learned_without(
    workers: list[dict[str, dict[str, Any]]], kind: str, error: float
) -> None:
    found, exact = workers[0][kind]["parameters"], workers[0]["none"]["parameters"]
    assert 0 < np.linalg.norm(found - exact) < error * np.linalg.norm(exact)


def test_an_unknown_compression_is_refused_with_what_is_allowed(workers: list[dict[str, dict[str, Any]]]) -> None:
    assert "'zip' is not a compression; allowed: bf16" in workers[0]["refused"]["text"]


def _group(rank: Rank) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    _join(rank, TESTBED_COMPRESSION='{"kind": "bf16"}')
    found: dict[str, Any] = {"trained": _train(_model(0.01), rank)}
    for dtype in (torch.float32, torch.float64, torch.int64):
        values = torch.full((3,), 257).to(dtype)  # one more than bfloat16 can tell from 256
        dist.all_reduce(values)
        found[str(dtype)] = values.tolist()
    largest = torch.tensor([257.0])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    found["max"] = largest.item()
    dist.destroy_process_group()
    os.environ["TESTBED_COMPRESSION"] = "top_k"
    try:
        _join(rank, EXTRA="1", TESTBED_COMPRESSION="top_k")
    except Exception as error:  # noqa: BLE001 - torch may wrap it
        found["refused"] = str(error)
    return found


def test_a_group_compresses_gradients_and_leaves_wide_types_alone() -> None:
    values = [outcome.value for outcome in run_ranks(_group, 2)]
    for value in values:
        assert value["torch.float32"] == [512.0] * 3
        assert value["torch.float64"] == [514.0] * 3
        assert value["torch.int64"] == [514] * 3
        assert value["max"] == 257.0
        assert "ddp_hook.register" in value["refused"]
        assert value["trained"]["losses"][-1] < 0.9 * value["trained"]["losses"][0]
    assert np.array_equal(values[0]["trained"]["parameters"], values[1]["trained"]["parameters"])
