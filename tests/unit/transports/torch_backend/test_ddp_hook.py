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
ALSO_IN_A_GROUP = ("fp16", "bf16")
"""Bit for bit: what others do depends on where a parameter begins, which a group does not know."""
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "top_k": {"kind": "top_k", "ratio": 0.1},
    "powersgd": {"kind": "powersgd"},
    "int8": {"kind": "int8"},
    "int8 in two phases": {"kind": "int8", "exchange": "two_phase", "error_feedback": True},
}
SMALL = 1e-6
"""Times which losses are: gradients of 1e-8, where half precision has a bit or two."""


def _join(rank: Rank, **environment: str) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from transports.torch_backend import autoload

    os.environ.update(TESTBED_ADDRESS="127.0.0.1", **environment)
    autoload.register()
    store = FileStore(f"{rank.store_path}-{len(environment)}", rank.size)
    dist.init_process_group("testbed", store=store, rank=rank.rank, world_size=rank.size)


def _model(bucket_cap_mb: float, dtype: str = "float32") -> "DistributedDataParallel":
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to(
        getattr(torch, dtype)
    )
    return DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb)


def _train(model: "DistributedDataParallel", rank: Rank, scale: float = 1.0) -> dict[str, Any]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 / scale)
    generator = torch.Generator().manual_seed(rank.rank)
    inputs = torch.randn(64, 20, generator=generator)
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    losses = []
    for _ in range(NUM_ITERATIONS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        (scale * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
    return {"losses": losses, "parameters": parameters.numpy().copy()}


def _hooks(rank: Rank) -> dict[str, dict[str, Any]]:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from transports.errors import OptionError
    from transports.torch_backend import ddp_hook

    _join(rank)
    found = {"none": _train(_model(0.01), rank)}
    for name, chosen in {**COMPRESSIONS, **{kind: {"kind": kind} for kind in ALSO_IN_A_GROUP}}.items():
        model = _model(0.01)
        ddp_hook.register(model, chosen)
        found[name] = _train(model, rank, SMALL if name in ALSO_IN_A_GROUP else 1.0)
    model = _model(0.01)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    found["torch fp16"] = _train(model, rank)
    model = _model(25.0)  # torch's PowerSGD mixes up several buckets, on any backend
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    found["torch PowerSGD"] = _train(model, rank)
    for name, model, compression in (("unknown", _model(25.0), "zip"), ("float64", _model(25.0, "float64"), "top_k")):
        try:
            ddp_hook.register(model, compression)
        except OptionError as error:
            found[name] = {"text": str(error)}
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
    assert "'zip' is not a compression; allowed: bf16" in workers[0]["unknown"]["text"]


def test_a_model_of_float64_is_refused_with_the_parameters_name(workers: list[dict[str, dict[str, Any]]]) -> None:
    assert "compression top_k: parameter 0.weight is float64" in workers[0]["float64"]["text"]


def _group(rank: Rank) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    found: dict[str, Any] = {}
    for number, kind in enumerate(ALSO_IN_A_GROUP):
        _join(rank, TESTBED_COMPRESSION=kind, **{f"EXTRA_{each}": "" for each in range(number)})
        found[kind] = _train(_model(0.01), rank, SMALL)
        for dtype in (torch.float32, torch.float64, torch.int64):
            values = torch.full((3,), 257).to(dtype)  # one more than bfloat16 can tell from 256
            dist.all_reduce(values)
            found[str(dtype)] = values.tolist()
        largest = torch.tensor([257.0])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        found["max"] = largest.item()
        dist.destroy_process_group()
    for number, kind in enumerate(("top_k", "signsgd"), len(ALSO_IN_A_GROUP)):
        try:
            _join(rank, TESTBED_COMPRESSION=kind, **{f"EXTRA_{each}": "" for each in range(number)})
        except Exception as error:  # noqa: BLE001 - torch may wrap it
            found[kind] = str(error)
    return found


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    return [outcome.value for outcome in run_ranks(_group, 2)]


def test_a_group_compresses_gradients_and_leaves_wide_types_alone(groups: list[dict[str, Any]]) -> None:
    for found in groups:
        assert found["torch.float32"] == [512.0] * 3
        assert found["torch.float64"] == [514.0] * 3
        assert found["torch.int64"] == [514] * 3
        assert found["max"] == 257.0


@pytest.mark.parametrize("kind", ALSO_IN_A_GROUP)
def test_a_group_makes_of_divided_gradients_what_the_hook_makes_of_whole_ones(
    workers: list[dict[str, dict[str, Any]]], groups: list[dict[str, Any]], kind: str
) -> None:
    for found in groups:
        assert np.array_equal(found[kind]["parameters"], workers[0][kind]["parameters"])


@pytest.mark.parametrize("kind", ["top_k", "signsgd"])
def test_a_group_refuses_what_needs_parameters_or_undivided_gradients(groups: list[dict[str, Any]], kind: str) -> None:
    for found in groups:
        assert f"compression {kind}" in found[kind]
        assert "ddp_hook.register" in found[kind]
