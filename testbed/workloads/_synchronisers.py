"""Who keeps the workers' models alike: what happens between backward and the next forward pass, in each way to do it.

The trainer runs one iteration after the other and calls these at the same places; what differs is where they wait.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.fusion import Fusion
from testbed.workloads._gradients import BucketRecorder, GradientCheck, GradientHook
from testbed.workloads._pacing import ComputePacer
from testbed.workloads.training import Training
from transports.engine import GradientEngine, OverlappedOptimizer
from transports.gradients import GradientCompression
from transports.process_group import TestbedProcessGroup


class Synchroniser:
    """Steps a model that others train, too."""

    stalled_s: float = 0.0
    """For how long the present iteration's forward pass has waited for gradients of the one before."""
    trails: bool = False
    """Whether an iteration's communication goes on in the next one's forward pass."""

    @abstractmethod
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The model's output. `stalled_s` is set anew."""

    @abstractmethod
    def after_backward(self) -> None:
        """Wait until the gradients are what the optimizer should step with."""

    @abstractmethod
    def step(self) -> None:
        """Step the optimizer, and forget the gradients."""

    def flush(self) -> None:
        """Finish whatever is under way: nothing of this iteration will be left to the next."""


class Alone(Synchroniser):
    """Nobody else: computes only."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As it is."""
        output: torch.Tensor = self._model(images)
        return output

    def after_backward(self) -> None:
        """They are what they are."""

    def step(self) -> None:
        """At once."""
        self._optimizer.step()
        self._optimizer.zero_grad()


class Parallel(Alone):
    """torch's DistributedDataParallel: its buckets go out during backward, which waits for the last of them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup,
        hook: GradientHook,
        *,
        bucket_bytes: int,
    ) -> None:
        parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_bytes / 2**20)
        parallel.register_comm_hook(None, hook.reduce)
        super().__init__(parallel, optimizer)


class Engine(Alone):
    """Our engine, where all gradients are waited for after backward."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: GradientEngine) -> None:
        super().__init__(model, optimizer)
        self._engine = engine

    def after_backward(self) -> None:
        """Of the last layers first, while the first ones' are under way."""
        self._engine.finish()


class Overlapped(Synchroniser):
    """Our engine, where each layer is waited for in the next forward pass, and stepped there."""

    trails = True

    def __init__(self, model: nn.Module, optimizer: OverlappedOptimizer, stalls: "Stalls") -> None:
        self._model = model
        self._optimizer = optimizer
        self._stalls = stalls

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Layer by layer, as their gradients come in."""
        self._stalls.total_s = 0.0
        output: torch.Tensor = self._model(images)
        self.stalled_s = self._stalls.total_s
        return output

    def after_backward(self) -> None:
        """The next forward pass does."""

    def step(self) -> None:
        """The next forward pass does."""

    def flush(self) -> None:
        """No forward pass follows that would."""
        self._optimizer.flush()


class Stalls:
    """Adds up the waiting, and keeps it out of what is stretched."""

    def __init__(self, pacer: ComputePacer) -> None:
        self._pacer = pacer
        self.total_s = 0.0

    @contextmanager
    def around(self) -> Iterator[None]:
        """One wait."""
        self._pacer.stretch()
        begun_s = time.monotonic()
        yield
        self.total_s += time.monotonic() - begun_s
        self._pacer.begin()


def synchroniser(
    model: nn.Module,
    options: Training,
    group: dist.ProcessGroup,
    *,
    fusion: Fusion,
    buckets: Sequence[int],
    recorder: BucketRecorder,
    pacer: ComputePacer,
    compression: GradientCompression | None,
    check: GradientCheck | None,
) -> Synchroniser:
    """The one that the spec asks for. With a check every local gradient is kept there."""
    parameters = list(model.parameters())
    if not fusion.by_engine:
        hook = GradientHook(
            group,
            recorder,
            pacer,
            group_traces=isinstance(group, TestbedProcessGroup),
            check=check,
            compression=compression,
        )
        return Parallel(model, optimizer_of(parameters, options), group, hook, bucket_bytes=fusion.limit_bytes)
    if check is not None:
        for parameter in parameters:  # before the engine's own hooks, which take the gradient away
            parameter.register_post_accumulate_grad_hook(lambda each: check.keep(each, each.grad))  # type: ignore[no-untyped-call]
    stalls = Stalls(pacer)

    def before_ready() -> None:
        pacer.stretch()
        recorder.ready()

    engine = GradientEngine(
        parameters,
        group,
        fusion.order(buckets),
        compression=compression,
        on_trace=recorder.completed,
        before_ready=before_ready,
        around_wait=stalls.around,
    )
    if engine.hides_behind_forward:
        optimizer = OverlappedOptimizer(model, engine, lambda layer: optimizer_of(layer, options))
        return Overlapped(model, optimizer, stalls)
    return Engine(model, optimizer_of(parameters, options), engine)


def optimizer_of(parameters: list[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    """Stochastic gradient descent as the workload says it."""
    return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=options.momentum)
