# mypy: disable-error-code="no-untyped-call"
"""The engine in processes of their own, over real sockets on loopback: what DistributedDataParallel does, in another
order."""

import time
from typing import Any

import pytest

from tests.ranks import ADDRESS, Rank, run_ranks

PRIORITY = {"kind": "priority", "partition_bytes": 2048}
TIMED = {"kind": "timed", "bucket_bytes": 8192, "cycle_s": 0.002}
NUM_ITERATIONS = 4


def _order(options: dict[str, Any], counts: list[int]) -> Any:
    from transports.torch_backend.ordering import Grouped, Priority, Timed

    options = dict(options)
    kind = options.pop("kind")
    if kind == "grouped":
        return Grouped(counts=(counts[0], sum(counts[1:])))
    return Priority(**options) if kind == "priority" else Timed(**options)


def _model(seed: int = 1) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)

    class Listed(nn.Module):
        """A linear layer with its parameters in a list, which is a module that nobody calls."""

        def __init__(self) -> None:
            super().__init__()
            self.tensors = nn.ParameterList(nn.Linear(64, 64).parameters())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, *self.tensors)

    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), Listed(), nn.Tanh(), nn.Linear(64, 5))


def _group(rank: Rank) -> Any:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from transports.channels.base import CHANNELS
    from transports.collectives.base import COLLECTIVES
    from transports.torch_backend import autoload, process_group

    autoload.register()
    process_group.configure(
        process_group.ProcessGroupOptions(
            collective=COLLECTIVES.parse("ring"), channel=CHANNELS.parse("tcp"), address=ADDRESS
        )
    )
    dist.init_process_group(
        "testbed", store=FileStore(rank.store_path, rank.size), rank=rank.rank, world_size=rank.size
    )
    return dist.group.WORLD


def _train(rank: Rank, options: dict[str, Any] | None, lag_s: float = 0.0) -> dict[str, Any]:
    """Some iterations; without options by DistributedDataParallel. Rank 0 is late by `lag_s` with every layer."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from transports.torch_backend.engine import GradientEngine, OverlappedOptimizer
    from transports.torch_backend.ordering import layer_counts

    group, model = _group(rank), _model()
    parameters = list(model.parameters())
    make = lambda which: torch.optim.SGD(which, lr=0.1, momentum=0.9)  # noqa: E731
    trace: list[tuple[int, int]] = []
    losses = []
    engine = None
    if options is not None:
        counts = list(reversed(layer_counts([tuple(each.shape) for each in parameters])))
        engine = GradientEngine(
            parameters,
            group,
            _order(options, counts),
            on_trace=lambda each: trace.append((each.sequence, each.size_bytes)),
            hand_over=lambda _, ready: (time.sleep(lag_s if rank.rank == 0 else 0.0), ready())[-1],
        )
    overlapped = OverlappedOptimizer(model, engine, make) if engine and engine.hides_behind_forward else None
    whole = None if overlapped else make(parameters)
    called = DistributedDataParallel(model, process_group=group) if engine is None else model
    generator = torch.Generator().manual_seed(rank.rank)
    for _ in range(NUM_ITERATIONS):
        loss = called(torch.randn(16, 20, generator=generator)).square().mean()
        losses.append(loss.item())
        if whole:
            whole.zero_grad()
        loss.backward()
        if whole:
            if engine:
                engine.finish()
            whole.step()
    if overlapped:
        overlapped.flush()
    dist.destroy_process_group()
    return {"parameters": [each.detach().numpy() for each in parameters], "losses": losses, "trace": trace}


def _values(size: int, options: dict[str, Any] | None, lag_s: float = 0.0) -> list[dict[str, Any]]:
    return [outcome.value for outcome in run_ranks(_train, size, options, lag_s)]


@pytest.mark.parametrize("options", [PRIORITY, TIMED, {"kind": "grouped"}], ids=lambda options: options["kind"])
def test_two_members_get_the_bits_of_distributed_data_parallel(options: dict[str, Any]) -> None:
    found, expected = _values(2, options), _values(2, None)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["losses"] == theirs["losses"]
        for one, other in zip(ours["parameters"], theirs["parameters"], strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("options", [PRIORITY, TIMED], ids=lambda options: options["kind"])
def test_members_that_are_late_reduce_the_same_in_the_same_order(options: dict[str, Any]) -> None:
    found = _values(3, options, 0.01)
    assert found[0]["trace"] == found[1]["trace"] == found[2]["trace"]
    assert sum(size_bytes for _, size_bytes in found[0]["trace"]) == NUM_ITERATIONS * 4 * (
        20 * 64 + 64 + 64 * 64 + 64 + 64 * 5 + 5
    )
    for one, other in zip(found[0]["parameters"], found[2]["parameters"], strict=True):
        assert (one == other).all()
    expected = _values(3, None)
    assert found[0]["losses"] == pytest.approx(expected[0]["losses"], rel=1e-5)


def _refused(rank: Rank) -> list[str]:
    import torch
    import torch.distributed as dist
    from torch import nn

    from transports.compression.base import COMPRESSORS
    from transports.errors import OptionError
    from transports.execution.gradients import GradientCompression
    from transports.torch_backend.engine import GradientEngine
    from transports.torch_backend.ordering import Priority

    group, model = _group(rank), _model()
    extra = nn.Linear(3, 3)
    engine = GradientEngine([*model.parameters(), *extra.parameters()], group, Priority(partition_bytes=1024))
    said = []
    compression = GradientCompression(COMPRESSORS.parse("top_k"), rank=rank.rank, num_workers=rank.size)
    try:
        GradientEngine(list(extra.double().parameters()), group, Priority(partition_bytes=1), compression=compression)
    except OptionError as error:
        said.append(str(error))
    model(torch.ones(2, 20)).sum().backward()
    for action in (engine.finish, model(torch.ones(2, 20)).sum().backward):
        try:
            action()
        except OptionError as error:
            said.append(str(error))
    dist.destroy_process_group()
    return said


def test_what_cannot_be_served_is_refused_and_a_missing_gradient_named() -> None:
    for outcome in run_ranks(_refused, 2):
        wide, unused, again = outcome.value
        assert "compression top_k: a gradient is float64" in wide
        assert "no gradient for all of layer 3 (parameter 7 of 8" in unused
        assert "again before the one before it was waited for" in again


def _unused(rank: Rank) -> list[str]:
    """What is said of each of four layers, two in a group, when backward does not come to it."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from transports.errors import OptionError
    from transports.torch_backend.engine import GradientEngine
    from transports.torch_backend.ordering import Grouped

    group, said = _group(rank), []
    for unused in range(4):
        layers = [nn.Linear(4, 4) for _ in range(4)]
        parameters = [each for layer in layers for each in layer.parameters()]
        engine = GradientEngine(parameters, group, Grouped(counts=(40, 40)))
        del layers[unused]
        nn.Sequential(*layers)(torch.ones(4)).sum().backward()
        try:
            engine.finish()
        except OptionError as error:
            said.append(str(error))
    dist.destroy_process_group()
    return said


def test_a_layer_that_is_not_used_is_named_where_its_group_would_keep_others_waiting() -> None:
    for outcome in run_ranks(_unused, 2):
        for unused, said in enumerate(outcome.value):
            assert f"no gradient for all of layer {unused} (parameter {2 * unused + 1} of 8" in said
        assert len(outcome.value) == 4


def _lost(rank: Rank) -> str:
    import os

    import torch

    from transports.torch_backend.engine import GradientEngine
    from transports.torch_backend.ordering import Priority

    group, model = _group(rank), _model()
    engine = GradientEngine(list(model.parameters()), group, Priority(partition_bytes=1024))
    if rank.rank == 1:
        os._exit(0)
    try:
        model(torch.ones(2, 20)).sum().backward()
        engine.finish()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_member_that_dies_ends_the_waiting() -> None:
    survivor, _ = run_ranks(_lost, 2, check=False)
    assert "rank 1" in survivor.value
