"""Sums of sparse tensors are gloo's, to the last bit."""

import gc
from typing import Any

import numpy as np
import pytest

from tests.ranks import Rank, join_group, run_ranks


def _tensors(rank: int, size: int) -> "list[Any]":
    """Of many shapes: different numbers of elements by rank, none at all, several at one index, dense dimensions."""
    import torch

    generator = torch.Generator().manual_seed(17 + rank)
    tensors = []
    for shape, num_sparse in (((50,), 1), ((20, 4), 1), ((7, 9), 2), ((6, 5, 3), 2), ((100, 8), 1)):
        for num_elements in (3 * rank, 10, 0 if rank else 5, 0):
            indices = torch.stack(
                [torch.randint(0, length, (num_elements,), generator=generator) for length in shape[:num_sparse]]
            )
            values = torch.randn(num_elements, *shape[num_sparse:], generator=generator)
            tensors += [torch.sparse_coo_tensor(indices, values, shape)]
    counted = torch.sparse_coo_tensor(torch.tensor([[1, rank + 2, 1]]), torch.tensor([5, 6, 7]), (size + 5,))
    half = torch.sparse_coo_tensor(torch.tensor([[0, 3]]), torch.randn(2, generator=generator), (4,)).bfloat16()
    return [*tensors, counted, half, half.double()]


def _sums(rank: Rank) -> dict[str, list[Any]]:
    import torch.distributed as dist

    results: dict[str, list[Any]] = {}
    for backend in ("testbed", "gloo"):
        join_group(rank, backend)
        results[backend] = []
        for tensor in _tensors(rank.rank, rank.size):
            dist.all_reduce(tensor)
            results[backend] += [(tensor.is_coalesced(), tensor.to_dense().double().numpy())]
        dist.destroy_process_group()
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_gloo_s_to_the_last_bit(size: int) -> None:
    for outcome in run_ranks(_sums, size):
        for (coalesced, ours), (_, gloo) in zip(outcome.value["testbed"], outcome.value["gloo"], strict=True):
            assert coalesced
            np.testing.assert_array_equal(ours, gloo)
        assert any(np.abs(gloo).max() > 0 for _, gloo in outcome.value["gloo"])


def _mean_and_errors(rank: Rank) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    join_group(rank, "testbed")
    mean = torch.sparse_coo_tensor(torch.tensor([[rank.rank, 2]]), torch.tensor([1.0, 4.0]), (4,))
    work = dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True)
    assert work is not None
    work.wait()
    results: dict[str, Any] = {"mean": mean.to_dense().tolist()}
    counts = torch.tensor([3, 0, -7, rank.rank])
    for name, tensor in (("dense", counts.clone()), ("sparse", counts.to_sparse())):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        results[name] = tensor.to_dense().tolist() if tensor.is_sparse else tensor.tolist()
    for name, call in {
        "max": lambda: dist.all_reduce(mean, op=dist.ReduceOp.MAX),
        "csr": lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()),
        "broadcast": lambda: dist.broadcast(torch.eye(3).to_sparse(), 0),
    }.items():
        with pytest.raises(ValueError) as failure:  # noqa: PT011 - the caller looks at the message
            call()
        results[name] = str(failure.value)
    again = torch.ones(3)
    dist.all_reduce(again)
    results["again"] = again.tolist()
    with pytest.raises(dist.DistBackendError) as mismatch:
        dist.all_reduce(torch.eye(3 + rank.rank).to_sparse())
    results["mismatch"] = str(mismatch.value)
    dist.destroy_process_group()
    return results


def test_means_are_had_and_what_is_not_is_refused_before_anything_travels() -> None:
    for outcome in run_ranks(_mean_and_errors, 2):
        result = outcome.value
        assert result["mean"] == [0.5, 0.5, 4.0, 0.0]
        assert result["sparse"] == result["dense"] == [3, 0, -7, 0]
        assert "SUM or AVG, not MAX" in result["max"]
        assert "dense" in result["csr"]
        assert "dense" in result["broadcast"]
        assert result["again"] == [2.0] * 3


def test_shapes_that_differ_are_named_on_both_sides() -> None:
    outcomes = run_ranks(_mean_and_errors, 2)
    assert "rank 0 reduces a sparse tensor of shape (3, 3)" in outcomes[0].value["mismatch"]
    assert "rank 1 one of shape (4, 4) with 2 sparse dimensions" in outcomes[0].value["mismatch"]


def _trained(rank: Rank) -> dict[str, Any]:
    import torch.distributed as dist

    results = {}
    for backend in ("testbed", "gloo"):
        join_group(rank, backend)
        results[backend] = _train(rank)
        # After the model: were that the last to let go of gloo's group, with the interpreter's lock held, it would wait
        # for gloo's threads, one of which may wait for the lock to free the last tensor: torch 2.13 hangs.
        gc.collect()
        dist.destroy_process_group()
    return results


def _train(rank: Rank) -> Any:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(3)
    module = nn.Sequential(nn.Embedding(40, 8, sparse=True), nn.Flatten(), nn.Linear(24, 2))
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(rank.rank)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randint(0, 40, (5, 3), generator=generator)).square().sum().backward()
        optimizer.step()
    return torch.cat([value.detach().ravel() for value in module.parameters()]).numpy().copy()


def test_an_embedding_with_sparse_gradients_trains_under_ddp_as_with_gloo() -> None:
    results = [outcome.value for outcome in run_ranks(_trained, 2)]
    np.testing.assert_array_equal(results[0]["testbed"], results[0]["gloo"])
    np.testing.assert_array_equal(results[0]["testbed"], results[1]["testbed"])
    assert np.isfinite(results[0]["testbed"]).all()
