"""A training worker's life, whatever it computes: the phases, the iterations, their account."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, PrefixStore

from testbed.control import control_pb2
from testbed.control.worker import WorkerConfiguration, WorkerControl, WorkerResult
from testbed.experiment.iterative import Iterative
from testbed.experiment.slowdowns.base import SLOWDOWNS, iteration_random
from testbed.experiment.workloads.base import GRADIENTS_GROUP
from testbed.system.kernel import return_free_memory
from testbed.worker.compute_pacer import ComputePacer, SchedulePacer, StretchingPacer
from testbed.worker.gradient_hook import BucketRecorder, GradientCheck
from testbed.worker.run_queue import RunQueueClock, threads
from testbed.worker.storage_reader import InMemory, Input, WorkerInput, worker_input
from testbed.worker.synchronisers import Alone, Situation, Synchroniser, synchroniser
from testbed.worker.task import Batch, Task
from testbed.worker.wall_time import durations_of
from transports.baselines.base import STACKS, CommunicatorLike, OnTrace
from transports.channels.base import CHANNELS, PeerStatistics
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.execution.communicator import Communicator
from transports.execution.gradients import GradientCompression
from transports.execution.trace import OperationTrace
from transports.torch_backend import autoload, process_group

_GLOO: Final = "gloo"


@contextmanager
def process_group_of(
    configuration: WorkerConfiguration, timeout_s: float, on_trace: OnTrace
) -> Iterator[dist.ProcessGroup]:
    """torch's default group of all workers, over what the spec exchanges with; `timeout_s` on the wall clock."""
    stack = None if configuration.stack is None else STACKS.parse(configuration.stack)
    backend = (stack and stack.torch_backend) or "testbed"  # gloo as torch's users have it
    store = FileStore(configuration.store_path, configuration.num_workers)
    if backend == _GLOO:
        os.environ["GLOO_SOCKET_IFNAME"] = configuration.interface
    else:
        autoload.register()
        process_group.configure(
            process_group.ProcessGroupOptions(
                collective=COLLECTIVES.parse(configuration.collective),
                channel=CHANNELS.parse(configuration.channel),
                address=configuration.address,
                racks=configuration.racks,
                stack=stack,
                servers_meet=(GRADIENTS_GROUP, PrefixStore(GRADIENTS_GROUP, store)),
                on_trace=on_trace,
            )
        )
    dist.init_process_group(
        backend,
        store=store,
        rank=configuration.rank,
        world_size=configuration.num_workers,
        timeout=timedelta(seconds=timeout_s),
    )
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class _Counted(NamedTuple):
    """The counters at one moment; None where there is nothing of the kind."""

    switch: dict[str, Any] | None
    """What an aggregating switch has done for this worker."""
    peers: dict[int, PeerStatistics] | None
    """What a channel counts that is not the kernel's."""


class Trainer:
    """A worker that trains; :meth:`run` is its whole life."""

    def __init__(
        self, options: Iterative, task: Task, configuration: WorkerConfiguration, control: WorkerControl
    ) -> None:
        self._options = options
        self._task = task
        self._configuration = configuration
        self._control = control
        self._durations = durations_of(options, configuration)
        self._recorder = BucketRecorder()
        schedule = self._durations.schedule
        self._pacer: ComputePacer = StretchingPacer() if schedule is None else SchedulePacer(schedule)
        slowdown = configuration.slowdown
        self._slowdown = None if slowdown is None else SLOWDOWNS.parse(slowdown)

    def run(self) -> None:
        """Compute alone, compute beside the others, warm up, measure, report.

        Raises what torch raises when a peer is lost, and ArithmeticError when a gradient is wrong."""
        options, configuration, task = self._options, self._configuration, self._task
        torch.set_num_threads(configuration.num_threads)
        torch.manual_seed(configuration.seed)
        model = task.build()
        self._pacer.bind(list(model.parameters()))
        timeout_s = self._durations.timeout_s
        with ExitStack() as stack:
            source = stack.enter_context(worker_input(configuration.storage, timeout_s, self._stage))
            computing = threads(without=CHANNELS.parse(configuration.channel).shared_threads)
            group = stack.enter_context(process_group_of(configuration, timeout_s, self._recorder.completed))
            opened = threads()
            self._begin(source)
            self._compute_only(task.copy(model))
            compared_s = time.monotonic()
            if configuration.num_threads > 1:
                computing |= threads() - opened  # torch's own pool
            self._control.report(control_pb2.Event(computing=control_pb2.Threads(ids=sorted(computing))))
            return_free_memory()
            check = GradientCheck(group) if options.verify_gradients else None
            iterations = _Iterations(
                task,
                self._synchroniser(group, model, check),
                RunQueueClock(computing),
                self._pacer,
                self._report,
                source=source.batches,
                recorder=self._recorder,
                verify=None if check is None else (lambda: check.verify(list(model.parameters()))),
            )
            self._stage("start", compared_s, time.monotonic())
            self._control.barrier("warmup")
            iterations.run("warmup", options.warmup, self._factor)
            self._control.barrier("measure")
            before = self._counted(group)
            iterations.run("measured", options.iterations, self._factor)
            self._control.barrier("done")
            if found := self._between(before, self._counted(group)):
                self._control.report(control_pb2.Event(result=control_pb2.Result(json=json.dumps(found))))
            alike = configuration.synchronisation.in_step  # elsewhere everybody has what it pulled last
            finished = _finished(task.results(model), alike=alike)
        self._control.report(control_pb2.Event(finished=finished))

    def _begin(self, source: WorkerInput) -> None:
        """Say when this worker had started, wait for the others, then read with them what has to be read before."""
        self._stage("start", self._configuration.launched_s, time.monotonic())
        self._control.barrier("started")
        if source.reads_at_start:
            source.read_at_start()
            self._control.barrier("read")

    def _stage(self, name: str, begin_s: float, end_s: float, size_bytes: int = 0) -> None:
        stage = control_pb2.Stage(name=name, begin_s=begin_s, end_s=end_s, size_bytes=size_bytes)
        self._control.report(control_pb2.Event(stage=stage))

    def _counted(self, group: dist.ProcessGroup) -> _Counted:
        """What this worker alone can count."""
        communicator = _communicator(group)
        if not isinstance(communicator, Communicator):
            return _Counted(None, None)
        own = CHANNELS.parse(self._configuration.channel).counts_itself
        return _Counted(communicator.reducer_statistics(), communicator.statistics() if own else None)

    @staticmethod
    def _between(before: _Counted, after: _Counted) -> dict[str, object]:
        """What the coordinator gets of it; nothing where there is nothing."""
        switch = None if before.switch is None else (before.switch, after.switch)
        peers = None if before.peers is None or after.peers is None else (before.peers, after.peers)
        return WorkerResult.dump(switch, peers)

    def _compute_only(self, model: nn.Module) -> None:
        """The same iterations on the same shapes, alone, with a model that is dropped afterwards."""
        alone, clock = Alone(model, self._task.optimizer(list(model.parameters()))), RunQueueClock()

        def computing(pacer: ComputePacer) -> _Iterations:
            return _Iterations(self._task, alone, clock, pacer, self._report, source=InMemory())

        preparing = computing(StretchingPacer())  # nothing of it is measured, so nothing waits for a pace
        preparing.one("compute_only", 0, 1.0)  # oneDNN prepares its kernels in the first; nobody's cost
        iterations = computing(self._pacer)
        if self._options.contends:
            self._compute_alone(preparing, iterations)
        self._control.barrier("compute_only")
        iterations.run("compute_only", self._options.compute_only, self._factor)
        self._control.barrier("compute_only_done")

    def _compute_alone(self, preparing: "_Iterations", iterations: "_Iterations") -> None:
        """In turn, while the others wait in a barrier: what the scaling factor compares with."""
        configuration = self._configuration
        for rank in range(configuration.num_workers):
            self._control.barrier(f"compute_alone_{rank}")
            if rank == configuration.rank:
                preparing.one("compute_alone", 0, 1.0)  # the caches were others'
                iterations.run("compute_alone", self._options.num_alone(configuration.num_workers), self._factor)

    def _factor(self, phase: str, index: int) -> float:
        """How many times as long this worker's computing takes in that iteration."""
        if self._slowdown is None:
            return 1.0
        configuration = self._configuration
        random = iteration_random(seed=configuration.seed, rank=configuration.rank, phase=phase, index=index)
        return self._slowdown.draw(random)

    def _synchroniser(self, group: dist.ProcessGroup, model: nn.Module, check: GradientCheck | None) -> Synchroniser:
        return synchroniser(
            Situation(
                model=model,
                task=self._task,
                group=group,
                configuration=self._configuration,
                fusion=self._durations.fusion,
                recorder=self._recorder,
                pacer=self._pacer,
                compression=self._compression(),
                check=check,
            )
        )

    def _compression(self) -> GradientCompression | None:
        configuration = self._configuration
        compressor = COMPRESSORS.parse(configuration.compression)
        if not compressor.compresses:
            return None
        return GradientCompression(
            compressor, rank=configuration.rank, num_workers=configuration.num_workers, seed=configuration.seed
        )

    def _report(self, iteration: control_pb2.Iteration) -> None:
        self._control.report(control_pb2.Event(iteration=iteration))


class _Iterations:
    """Training steps, timed. `recorder` is None where nothing is communicated."""

    def __init__(
        self,
        task: Task,
        synchroniser: Synchroniser,
        clock: RunQueueClock,
        pacer: ComputePacer,
        report: Callable[[control_pb2.Iteration], None],
        *,
        source: Input,
        recorder: BucketRecorder | None = None,
        verify: Callable[[], object] | None = None,
    ) -> None:
        self._task = task
        self._synchroniser = synchroniser
        self._source = source
        self._data: Iterator[Batch] = task.batches()
        self._clock = clock
        self._pacer = pacer
        self._report = report
        self._recorder = recorder
        self._verify = verify
        self._trailing: control_pb2.Iteration | None = None
        """The one before, while its communication goes on."""

    def run(self, phase: str, num_iterations: int, factor: Callable[[str, int], float]) -> None:
        """A phase's, each reported when all of its communication is over; computing takes `factor` times as long."""
        self._pacer.restart()
        for index in range(num_iterations):
            iteration = self.one(phase, index, factor(phase, index), last=index == num_iterations - 1)
            if self._synchroniser.trails and index < num_iterations - 1:
                self._trailing = iteration
            else:
                self._complete(iteration)
        self._pacer.restart()
        self._source.settle()

    def _complete(self, iteration: control_pb2.Iteration) -> None:
        if self._recorder is not None:
            iteration.buckets.extend(_message(trace) for trace in self._recorder.take())
        self._report(iteration)

    def one(self, phase: str, index: int, slowdown: float, *, last: bool = False) -> control_pb2.Iteration:
        """Forward, backward with its communication, optimizer; returns the account of it, without its buckets. Nothing
        of the last one is left to another."""
        synchroniser, pacer = self._synchroniser, self._pacer
        cpu_before_s = time.process_time()
        start_s = pacer.begin(slowdown)
        read_s = self._source.take(start_s)
        batch = next(self._data)
        there = pacer.data_loaded(read_s)
        self._source.computing_from(there.copied_s)
        loss = self._task.loss(synchroniser.forward(batch.inputs), batch)
        forward_end_s = pacer.forward_ended()
        if self._trailing is not None:
            self._complete(self._trailing)
            self._trailing = None
        loss.backward()  # type: ignore[no-untyped-call]
        if self._recorder is None:  # else the hook has, before each bucket
            pacer.backward_ended()
        synchroniser.after_backward()
        if last:
            synchroniser.flush()
        backward_end_s = time.monotonic()
        handed_over_s = self._recorder.last_s if self._recorder else backward_end_s
        if synchroniser.trails and not last:
            backward_end_s = handed_over_s  # what is not waited for here is not exposed here
        pacer.update(backward_end_s if self._verify is None else self._verified())
        synchroniser.step()
        optimizer_end_s = pacer.update_ended()
        delay = self._clock.lap()
        return control_pb2.Iteration(
            phase=phase,
            index=index,
            start_s=start_s,
            data_end_s=there.read_s,
            host_to_device_end_s=there.copied_s,
            forward_end_s=forward_end_s,
            backward_compute_end_s=handed_over_s,
            backward_end_s=backward_end_s,
            optimizer_end_s=optimizer_end_s,
            loss=self._task.loss_value(loss),
            num_samples=self._task.num_samples,
            cpu_s=time.process_time() - cpu_before_s,
            run_queue_delay_s=delay.total_s,
            communication_run_queue_delay_s=delay.communication_s,
            slowdown=slowdown,
            forward_stall_s=synchroniser.stalled_s,
            staleness=synchroniser.staleness,
            pace_s=pacer.pace_s,
            overrun_s=pacer.overrun_s,
            end_s=pacer.end(),
        )

    def _verified(self) -> float:
        """When that was over."""
        assert self._verify is not None, "requested"
        self._verify()
        return time.monotonic()


def _message(trace: OperationTrace) -> control_pb2.Bucket:
    return control_pb2.Bucket(
        sequence=trace.sequence,
        size_bytes=trace.size_bytes,
        enqueued_s=trace.enqueued_s,
        started_s=trace.started_s,
        first_byte_s=trace.first_byte_s,
        done_s=trace.done_s,
        payload_bytes=trace.payload_bytes,
        encode_s=trace.encode_s,
        decode_s=trace.decode_s,
    )


def _communicator(group: dist.ProcessGroup) -> CommunicatorLike | None:
    """What the group exchanges tensors with; None for one of torch's own."""
    return group.communicator if isinstance(group, process_group.TestbedProcessGroup) else None


def _finished(results: Sequence[torch.Tensor], *, alike: bool) -> control_pb2.Finished:
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.contiguous().numpy().data)
    return control_pb2.Finished(
        parameters_sha256=digest.hexdigest() if alike else "",
        num_parameters=sum(result.numel() for result in results),
    )
