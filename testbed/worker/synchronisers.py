"""Who keeps the workers' models alike: what happens between backward and the next forward pass, in each way to do it.

The trainer runs one iteration after the other and calls these at the same places; what differs is where they wait.
"""

import importlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.control.worker import WorkerConfiguration
from testbed.experiment.fusion.base import Fusion
from testbed.experiment.workloads.base import GRADIENTS_GROUP
from testbed.worker.compute_pacer import ComputePacer
from testbed.worker.gradient_hook import BucketRecorder, GradientCheck, GradientHook
from testbed.worker.hand_over import HandOver
from testbed.worker.task import Task
from transports.collectives.base import COLLECTIVES
from transports.execution.asynchronous import AsynchronousWorker, push_pull_trace
from transports.execution.gradients import GradientCompression
from transports.execution.operations import Transport
from transports.torch_backend.engine import GradientEngine, OverlappedOptimizer
from transports.torch_backend.ordering import layers_of
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
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
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

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's forward pass, with its own parameters."""
        output: torch.Tensor = self._model(inputs)
        return output

    def after_backward(self) -> None:
        """Nothing: the gradients stay this worker's."""

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
        broadcasts: bool,
    ) -> None:
        parallel = DistributedDataParallel(
            model,
            process_group=group,
            bucket_cap_mb=bucket_bytes / 2**20,
            gradient_as_bucket_view=True,  # one copy of the gradients in a worker, not two
            init_sync=broadcasts,
        )
        parallel.register_comm_hook(None, hook.reduce)
        super().__init__(parallel, optimizer)


class Engine(Alone):
    """Our engine, where all gradients are waited for after backward."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: GradientEngine, hand_over: HandOver
    ) -> None:
        super().__init__(model, optimizer)
        self._engine = engine
        self._hand_over = hand_over

    def after_backward(self) -> None:
        """Of the last layers first, while the first ones' are under way."""
        self._hand_over.wait()
        self._engine.finish()


class Overlapped(Synchroniser):
    """Our engine, where each layer is waited for in the next forward pass, and stepped there."""

    trails = True

    def __init__(self, model: nn.Module, optimizer: OverlappedOptimizer, stalls: "Stalls", hand_over: HandOver) -> None:
        self._model = model
        self._optimizer = optimizer
        self._stalls = stalls
        self._hand_over = hand_over

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Layer by layer, as their gradients come in."""
        self._stalls.total_s = 0.0
        output: torch.Tensor = self._model(inputs)
        self.stalled_s = self._stalls.total_s
        return output

    def after_backward(self) -> None:
        """Of no layer: the next forward pass does."""
        self._hand_over.wait()

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

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The forward pass with this worker's own parameters."""
        self.staleness = self._num_steps
        output: torch.Tensor = self._model(inputs)
        return output

    def after_backward(self) -> None:
        """Step, and average when it is time."""
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._num_steps += 1
        averages = self._num_steps == self._every
        if averages:
            self._gather()
        self._pacer.backward_ended()
        self._recorder.ready()
        if averages:
            self._average()

    def step(self) -> None:
        """Nothing: the step was done after backward."""

    def flush(self) -> None:
        """Average, unless that has just been done."""
        if self._num_steps:
            self._gather()
            self._average()

    def _gather(self) -> None:
        """This worker's share of the mean, where it is summed."""
        _copy([parameter.detach() for parameter in self._parameters], self._flat)
        self._flat.mul_(1.0 / self._group.size())

    def _average(self) -> None:
        self._num_steps = 0
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

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The forward pass with the parameters that were pulled last."""
        output: torch.Tensor = self._model(inputs)
        return output

    def after_backward(self) -> None:
        """Push, then pull."""
        gradients = [parameter.grad for parameter in self._parameters]
        _copy([gradient for gradient in gradients if gradient is not None], self._worker.gradient)
        self._pacer.backward_ended()
        self._recorder.ready()
        enqueued_s = time.monotonic()
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
    """Adds up the waiting, and keeps it out of what is computing."""

    def __init__(self, pacer: ComputePacer, layers: Sequence[Sequence[nn.Parameter]]) -> None:
        self._pacer = pacer
        self._layers = layers
        self.total_s = 0.0

    @contextmanager
    def around(self, layer: int) -> Iterator[None]:
        """Time one wait for a layer's parameters."""
        self._pacer.before_waiting(self._layers[layer])
        begun_s = time.monotonic()
        yield
        waited_s = time.monotonic() - begun_s
        self.total_s += waited_s
        self._pacer.after_waiting(waited_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What a synchroniser is made of."""

    model: nn.Module
    task: Task
    group: dist.ProcessGroup
    configuration: WorkerConfiguration
    fusion: Fusion
    """With times of this machine's clock."""
    recorder: BucketRecorder
    pacer: ComputePacer
    compression: GradientCompression | None
    check: GradientCheck | None
    """If there is one, every local gradient is kept there."""


Maker = Callable[[Situation], Synchroniser]
"""What `Synchronisation.worker` names."""


def synchroniser(situation: Situation) -> Synchroniser:
    """The one that the spec requests."""
    module, _, name = situation.configuration.synchronisation.worker.partition(":")
    make: Maker = getattr(importlib.import_module(module), name)
    return make(situation)


def by_averaging(situation: Situation) -> Synchroniser:
    """Parameters are averaged after every `interval` iterations."""
    interval = situation.configuration.synchronisation.interval
    assert interval is not None
    return Local(
        situation.model,
        situation.task.optimizer(list(situation.model.parameters())),
        situation.group,
        situation.recorder,
        situation.pacer,
        buckets=situation.configuration.buckets,
        every=interval,
    )


def by_servers(situation: Situation) -> Synchroniser:
    """That step with each gradient that is pushed to them."""
    group = situation.group
    assert isinstance(group, TestbedProcessGroup), "a plan refuses baseline libraries"
    servers = COLLECTIVES.parse(situation.configuration.collective).num_servers
    return Asynchronous(situation.model, group, situation.recorder, situation.pacer, servers=servers)


def by_gradients(situation: Situation) -> Synchroniser:
    """Gradients are averaged in every iteration, fused as the spec says."""
    model, task, group = situation.model, situation.task, situation.group
    fusion, buckets = situation.fusion, situation.configuration.buckets
    recorder, pacer, check = situation.recorder, situation.pacer, situation.check
    parameters = list(model.parameters())
    if not fusion.by_engine:
        hook = GradientHook(
            group,
            recorder,
            pacer,
            group_traces=isinstance(group, TestbedProcessGroup),
            check=check,
            compression=situation.compression,
        )
        return Parallel(
            model,
            task.optimizer(parameters),
            group,
            hook,
            bucket_bytes=fusion.limit_bytes,
            broadcasts=task.broadcasts,
        )
    if check is not None:
        for parameter in parameters:  # before the engine's own hooks, which take the gradient away
            parameter.register_post_accumulate_grad_hook(lambda each: check.keep(each, each.grad))  # type: ignore[no-untyped-call]
    layers = [parameters[start:stop] for start, stop in layers_of([tuple(each.shape) for each in parameters])]
    stalls = Stalls(pacer, layers)

    hand_over = HandOver(pacer)

    def handed_over(layer: int, ready: Callable[[], None]) -> None:
        def due() -> None:
            recorder.ready()
            ready()

        hand_over.call_when_due(layers[layer], due)

    engine = GradientEngine(
        parameters,
        group,
        fusion.order(buckets),
        compression=situation.compression,
        on_trace=recorder.completed,
        hand_over=handed_over,
        around_wait=stalls.around,
    )
    if engine.hides_behind_forward:
        return Overlapped(model, OverlappedOptimizer(model, engine, task.optimizer), stalls, hand_over)
    return Engine(model, task.optimizer(parameters), engine, hand_over)
