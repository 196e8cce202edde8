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

from testbed.control.worker import WorkerConfiguration
from testbed.experiment.clock import Clock
from testbed.experiment.workloads.base import GRADIENTS_GROUP
from testbed.experiment.workloads.training import Training
from testbed.worker.compute_pacer import ComputePacer
from testbed.worker.gradient_hook import BucketRecorder, GradientCheck, GradientHook
from transports.collectives.base import COLLECTIVES
from transports.execution.asynchronous import AsynchronousWorker, push_pull_trace
from transports.execution.gradients import GradientCompression
from transports.execution.operations import Transport
from transports.torch_backend.engine import GradientEngine, OverlappedOptimizer
from transports.torch_backend.process_group import TestbedProcessGroup


class Synchroniser:
    """Steps a model that others train, too."""

    stalled_s: float = 0.0
    """For how long the present iteration's forward pass has waited for gradients of the one before."""
    staleness: int = 0
    """Of the present iteration's gradient: how many updates its parameters lacked."""
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


class Local(Synchroniser):
    """Local SGD: steps by itself, and averages its parameters with the others' now and then."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup,
        recorder: BucketRecorder,
        pacer: ComputePacer,
        *,
        buckets: Sequence[int],
        every: int,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._group = group
        self._recorder = recorder
        self._pacer = pacer
        self._every = every
        self._parameters = list(model.parameters())
        self._flat = torch.empty(sum(buckets))
        self._buckets = torch.split(self._flat, list(buckets))
        self._num_steps = 0
        """Since the last averaging."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """With this worker's own parameters."""
        self.staleness = self._num_steps
        output: torch.Tensor = self._model(images)
        return output

    def after_backward(self) -> None:
        """Step, and average when it is time."""
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._pacer.stretch()
        self._recorder.ready()
        self._num_steps += 1
        if self._num_steps == self._every:
            self.flush()

    def step(self) -> None:
        """It has."""

    def flush(self) -> None:
        """Average, unless that has just been done."""
        if not self._num_steps:
            return
        self._num_steps = 0
        _copy([parameter.detach() for parameter in self._parameters], self._flat)
        self._flat.mul_(1.0 / self._group.size())
        works = [dist.all_reduce(bucket, group=self._group, async_op=True) for bucket in self._buckets]
        for work in works:
            assert work is not None
            work.wait()
        _spread(self._flat, self._parameters)


class Asynchronous(Synchroniser):
    """Pushes its gradient to servers that step at once, and pulls what the parameters are then."""

    def __init__(
        self,
        model: nn.Module,
        group: TestbedProcessGroup,
        recorder: BucketRecorder,
        pacer: ComputePacer,
        *,
        servers: int,
    ) -> None:
        self._model = model
        self._recorder = recorder
        self._pacer = pacer
        self._communicator = group.ours
        self._parameters = list(model.parameters())
        values = torch.empty(sum(parameter.numel() for parameter in self._parameters))
        _copy([parameter.detach() for parameter in self._parameters], values)
        self._worker = AsynchronousWorker(GRADIENTS_GROUP, servers, values)
        self._num_pushes = 0
        self._communicator.submit("begin", self._worker.begin, values.nbytes).wait()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """With what was pulled last."""
        output: torch.Tensor = self._model(images)
        return output

    def after_backward(self) -> None:
        """Push, then pull."""
        self._pacer.stretch()
        self._recorder.ready()
        enqueued_s = time.monotonic()
        gradients = [parameter.grad for parameter in self._parameters]
        _copy([gradient for gradient in gradients if gradient is not None], self._worker.gradient)
        self._num_pushes += 1

        def job(transport: Transport) -> None:
            self.staleness = self._worker.push_pull(transport)
            self._recorder.pushed(push_pull_trace(self._worker, transport, self._num_pushes, enqueued_s))

        self._communicator.submit("push_pull", job, self._worker.gradient.nbytes).wait()
        _spread(self._worker.values, self._parameters)
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """The servers have."""


def _copy(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """One after the other."""
    torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)


def _spread(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """The other way round."""
    with torch.no_grad():
        for parameter, values in zip(parameters, torch.split(flat, [each.numel() for each in parameters]), strict=True):
            parameter.copy_(values.view_as(parameter))


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
    configuration: WorkerConfiguration,
    recorder: BucketRecorder,
    pacer: ComputePacer,
    compression: GradientCompression | None,
    check: GradientCheck | None,
) -> Synchroniser:
    """The one that the spec asks for. With a check every local gradient is kept there."""
    parameters = list(model.parameters())
    fusion = Clock(configuration.dilation).real(configuration.fusion)
    buckets, synchronisation = configuration.buckets, configuration.synchronisation
    if synchronisation.kind == "local_sgd":
        assert synchronisation.every is not None
        optimizer = optimizer_of(parameters, options)
        return Local(model, optimizer, group, recorder, pacer, buckets=buckets, every=synchronisation.every)
    if synchronisation.kind == "asynchronous":
        assert isinstance(group, TestbedProcessGroup), "a plan refuses whole stacks"
        servers = COLLECTIVES.parse(configuration.collective).num_servers
        return Asynchronous(model, group, recorder, pacer, servers=servers)
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
        overlapped = OverlappedOptimizer(model, engine, lambda layer: optimizer_of(layer, options))
        return Overlapped(model, overlapped, stalls)
    return Engine(model, optimizer_of(parameters, options), engine)


def optimizer_of(parameters: list[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    """Stochastic gradient descent as the workload says it."""
    return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=options.momentum)
