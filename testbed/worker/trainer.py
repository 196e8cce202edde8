"""A training worker's life: the part of the `training` workload that needs torch."""

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, PrefixStore

from testbed.control import control_pb2, endpoint_statistics
from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.slowdowns.base import SLOWDOWNS, iteration_random
from testbed.experiment.workloads.base import GRADIENTS_GROUP
from testbed.experiment.workloads.training import Training
from testbed.system.kernel import return_free_memory
from testbed.worker.compute_pacer import ComputePacer
from testbed.worker.datasets import DATASETS, Dataset, batches
from testbed.worker.gradient_hook import BucketRecorder, GradientCheck
from testbed.worker.run_queue import RunQueueClock, threads
from testbed.worker.synchronisers import Alone, Synchroniser, optimizer_of, synchroniser
from transports.baselines.base import STACKS, CommunicatorLike
from transports.baselines.gloo import Gloo
from transports.channels.base import CHANNELS, PeerStatistics
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.execution.communicator import Communicator
from transports.execution.gradients import GradientCompression
from transports.execution.trace import OperationTrace
from transports.torch_backend import autoload, process_group

_GLOO: Final = "gloo"


class _Counted(NamedTuple):
    """At one moment; None where there is nothing of the kind."""

    switch: dict[str, Any] | None
    """What a switch that adds has done for this worker."""
    peers: dict[int, PeerStatistics] | None
    """What a channel counts that is not the kernel's."""


def work(options: Training, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    """Train. Raises what torch raises when a peer is lost, and ArithmeticError when a gradient is wrong."""
    Trainer(options, configuration, control).run()


class Trainer:
    """One worker; :meth:`run` is its whole life."""

    def __init__(self, options: Training, configuration: WorkerConfiguration, control: WorkerControl) -> None:
        self._options = options
        self._configuration = configuration
        self._control = control
        self._recorder = BucketRecorder()
        self._pacer = ComputePacer()
        slowdown = configuration.slowdown
        self._slowdown = None if slowdown is None else SLOWDOWNS.parse(slowdown)

    def run(self) -> None:
        """Compute alone, compute beside the others, warm up, measure, report."""
        options, configuration = self._options, self._configuration
        torch.set_num_threads(configuration.num_threads)
        torch.manual_seed(configuration.seed)
        model = options.build()
        dataset = DATASETS[options.dataset]()
        computing = threads()
        with self._process_group() as group:
            opened = threads()
            self._compute_only(copy.deepcopy(model), dataset)
            if configuration.num_threads > 1:
                computing |= threads() - opened  # torch's own pool
            return_free_memory()
            check = GradientCheck(group) if options.verify_gradients else None
            iterations = _Iterations(
                self._synchroniser(group, model, check),
                self._batches(dataset),
                RunQueueClock(computing),
                self._pacer,
                self._report,
                recorder=self._recorder,
                verify=None if check is None else (lambda: check.verify(list(model.parameters()))),
            )
            self._control.barrier("warmup")
            iterations.run("warmup", options.warmup, self._factor)
            self._control.barrier("measure")
            before = self._counted(group)
            iterations.run("measured", options.iterations, self._factor)
            self._control.barrier("done")
            if found := self._between(before, self._counted(group)):
                self._control.report(control_pb2.Event(result=control_pb2.Result(json=json.dumps(found))))
        alike = configuration.synchronisation.kind != "asynchronous"  # there everybody has what it pulled last
        self._control.report(control_pb2.Event(finished=_finished(model, alike=alike)))

    def _counted(self, group: dist.ProcessGroup) -> _Counted:
        """What this worker alone can count."""
        communicator = _communicator(group)
        if not isinstance(communicator, Communicator):
            return _Counted(None, None)
        own = CHANNELS.parse(self._configuration.channel).counts_itself
        return _Counted(communicator.reducer_statistics(), communicator.statistics() if own else None)

    @staticmethod
    def _between(before: _Counted, after: _Counted) -> dict[str, Any]:
        """As the coordinator is told it; nothing where there is nothing."""
        found: dict[str, Any] = {}
        if before.switch is not None:
            found |= {"before": before.switch, "after": after.switch}
        if before.peers is not None and after.peers is not None:
            found["peers"] = endpoint_statistics.dump(before.peers, after.peers)
        return found

    @contextmanager
    def _process_group(self) -> Iterator[dist.ProcessGroup]:
        configuration = self._configuration
        stack = None if configuration.stack is None else STACKS.parse(configuration.stack)
        backend = _GLOO if isinstance(stack, Gloo) else "testbed"  # gloo as torch's users have it
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
                    on_trace=self._recorder.completed,
                )
            )
        dist.init_process_group(
            backend,
            store=store,
            rank=configuration.rank,
            world_size=configuration.num_workers,
            timeout=timedelta(seconds=configuration.timeout_s),
        )
        assert dist.group.WORLD is not None
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()

    def _compute_only(self, model: nn.Module, dataset: Dataset) -> None:
        """The same iterations on the same shapes, alone; the weights it makes are dropped with the copy."""
        alone = Alone(model, optimizer_of(list(model.parameters()), self._options))
        iterations = _Iterations(alone, self._batches(dataset), RunQueueClock(), self._pacer, self._report)
        iterations.one("compute_only", 0, 1.0)  # oneDNN prepares its kernels in the first; nobody's cost
        self._compute_alone(iterations)
        self._control.barrier("compute_only")
        iterations.run("compute_only", self._options.compute_only, self._factor)
        self._control.barrier("compute_only_done")

    def _compute_alone(self, iterations: "_Iterations") -> None:
        """In turn, while the others wait in a barrier: what the scaling factor compares with."""
        configuration = self._configuration
        for rank in range(configuration.num_workers):
            self._control.barrier(f"compute_alone_{rank}")
            if rank == configuration.rank:
                iterations.one("compute_alone", 0, 1.0)  # the caches were others'
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
            model,
            self._options,
            group,
            configuration=self._configuration,
            recorder=self._recorder,
            pacer=self._pacer,
            compression=self._compression(),
            check=check,
        )

    def _compression(self) -> GradientCompression | None:
        configuration = self._configuration
        compressor = COMPRESSORS.parse(configuration.compression)
        if compressor.kind == "none":
            return None
        return GradientCompression(
            compressor, rank=configuration.rank, num_workers=configuration.num_workers, seed=configuration.seed
        )

    def _batches(self, dataset: Dataset) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images, labels = torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels)
        for numbers in batches(
            num_images=len(labels),
            batch_size=self._options.batch_size,
            rank=self._configuration.rank,
            num_workers=self._configuration.num_workers,
            seed=self._configuration.seed,
        ):
            chosen = torch.from_numpy(numbers)
            yield images[chosen], labels[chosen]

    def _report(self, iteration: control_pb2.Iteration) -> None:
        self._control.report(control_pb2.Event(iteration=iteration))


class _Iterations:
    """Training steps, timed. `recorder` is None where nothing is communicated."""

    def __init__(
        self,
        synchroniser: Synchroniser,
        data: Iterator[tuple[torch.Tensor, torch.Tensor]],
        clock: RunQueueClock,
        pacer: ComputePacer,
        report: Callable[[control_pb2.Iteration], None],
        *,
        recorder: BucketRecorder | None = None,
        verify: Callable[[], object] | None = None,
    ) -> None:
        self._synchroniser = synchroniser
        self._data = data
        self._clock = clock
        self._pacer = pacer
        self._report = report
        self._recorder = recorder
        self._verify = verify
        self._trailing: control_pb2.Iteration | None = None
        """The one before, while its communication goes on."""

    def run(self, phase: str, num_iterations: int, factor: Callable[[str, int], float]) -> None:
        """A phase's, each reported when all of its communication is over; computing takes `factor` times as long."""
        for index in range(num_iterations):
            iteration = self.one(phase, index, factor(phase, index), last=index == num_iterations - 1)
            if self._synchroniser.trails and index < num_iterations - 1:
                self._trailing = iteration
            else:
                self._complete(iteration)

    def _complete(self, iteration: control_pb2.Iteration) -> None:
        if self._recorder is not None:
            iteration.buckets.extend(_message(trace) for trace in self._recorder.take())
        self._report(iteration)

    def one(self, phase: str, index: int, slowdown: float, *, last: bool = False) -> control_pb2.Iteration:
        """Forward, backward with its communication, optimizer; returns the account of it, without its buckets. Nothing
        of the last one is left to another."""
        synchroniser = self._synchroniser
        cpu_before_s = time.process_time()
        start_s = time.monotonic()
        self._pacer.factor = slowdown
        self._pacer.begin()
        images, labels = next(self._data)
        data_end_s = time.monotonic()
        loss = nn.functional.cross_entropy(synchroniser.forward(images), labels)
        self._pacer.stretch()
        forward_end_s = time.monotonic()
        if self._trailing is not None:
            self._complete(self._trailing)
            self._trailing = None
        loss.backward()  # type: ignore[no-untyped-call]
        if self._recorder is None:  # else the hook has, before each bucket
            self._pacer.stretch()
        synchroniser.after_backward()
        if last:
            synchroniser.flush()
        backward_end_s = time.monotonic()
        if self._verify is not None:
            self._verify()
        self._pacer.begin()
        synchroniser.step()
        self._pacer.stretch()
        optimizer_end_s = time.monotonic()
        handed_over_s = self._recorder.last_s if self._recorder else backward_end_s
        if synchroniser.trails and not last:
            backward_end_s = handed_over_s  # what is not waited for here is not exposed here
        delay = self._clock.lap()
        return control_pb2.Iteration(
            phase=phase,
            index=index,
            start_s=start_s,
            data_end_s=data_end_s,
            forward_end_s=forward_end_s,
            backward_compute_end_s=handed_over_s,
            backward_end_s=backward_end_s,
            optimizer_end_s=optimizer_end_s,
            loss=loss.item(),
            num_samples=len(labels),
            cpu_s=time.process_time() - cpu_before_s,
            run_queue_delay_s=delay.total_s,
            communication_run_queue_delay_s=delay.communication_s,
            slowdown=slowdown,
            forward_stall_s=synchroniser.stalled_s,
            staleness=synchroniser.staleness,
            end_s=time.monotonic(),
        )


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


def _finished(model: nn.Module, *, alike: bool) -> control_pb2.Finished:
    parameters = [parameter.detach().contiguous() for parameter in model.parameters()]
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.numpy().tobytes())
    return control_pb2.Finished(
        parameters_sha256=digest.hexdigest() if alike else "",
        num_parameters=sum(parameter.numel() for parameter in parameters),
    )
