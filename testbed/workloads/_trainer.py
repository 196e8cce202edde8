"""A training worker's life: the part of the `training` workload that needs torch."""

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, PrefixStore
from torch.nn.parallel import DistributedDataParallel

from testbed.control import control_pb2
from testbed.kernel import return_free_memory
from testbed.slowdowns.base import SLOWDOWNS, iteration_random
from testbed.workloads._datasets import DATASETS, Dataset, batches
from testbed.workloads._gradients import BucketRecorder, GradientHook
from testbed.workloads._models import MODELS
from testbed.workloads._pacing import ComputePacer
from testbed.workloads._scheduling import RunQueueClock, threads_named
from testbed.workloads.base import GRADIENTS_GROUP, WorkerConfiguration, WorkerControl
from transports import autoload, process_group
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.gradients import GradientCompression

if TYPE_CHECKING:
    from testbed.workloads.training import Training

_GLOO: Final = "gloo"
_GLOO_THREADS: Final = "gloo"
"""Part of the name of the threads in which torch's gloo group runs collectives."""


class Trainer:
    """One worker; :meth:`run` is its whole life."""

    def __init__(self, options: "Training", configuration: WorkerConfiguration, control: WorkerControl) -> None:
        self._options = options
        self._configuration = configuration
        self._control = control
        self._recorder = BucketRecorder()
        self._pacer = ComputePacer()
        slowdown = configuration.slowdown
        self._slowdown = None if slowdown is None else SLOWDOWNS.parse(slowdown)

    def run(self) -> None:
        """Compute only, warm up, measure, report."""
        options, configuration = self._options, self._configuration
        torch.set_num_threads(configuration.num_threads)
        torch.manual_seed(configuration.seed)
        model = MODELS[options.model].build()
        dataset = DATASETS[options.dataset]()
        with self._process_group() as group:
            self._compute_only(copy.deepcopy(model), dataset)
            return_free_memory()
            hook = self._hook(group)
            parallel = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=configuration.bucket_bytes / 2**20
            )
            parallel.register_comm_hook(None, hook.reduce)
            iteration = _Iteration(
                parallel, self._optimizer(model), self._batches(dataset), self._recorder, _clock(group), self._pacer
            )
            verify = (lambda: hook.verify(list(model.parameters()))) if options.verify_gradients else None
            self._control.barrier("warmup")
            for index in range(options.warmup):
                self._report(iteration.run("warmup", index, verify, self._factor("warmup", index)))
            self._control.barrier("measure")
            before = _switch_statistics(group)
            for index in range(options.iterations):
                self._report(iteration.run("measured", index, verify, self._factor("measured", index)))
            self._control.barrier("done")
            if before is not None:
                found = json.dumps({"before": before, "after": _switch_statistics(group)})
                self._control.report(control_pb2.Event(result=control_pb2.Result(json=found)))
        self._control.report(control_pb2.Event(finished=_finished(model)))

    @contextmanager
    def _process_group(self) -> Iterator[dist.ProcessGroup]:
        configuration = self._configuration
        backend = configuration.stack or "testbed"
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
        clock = RunQueueClock(frozenset())
        iteration = _Iteration(model, self._optimizer(model), self._batches(dataset), None, clock, self._pacer)
        iteration.run("compute_only", 0, None, 1.0)  # oneDNN prepares its kernels in the first; nobody's cost
        self._control.barrier("compute_only")
        for index in range(self._options.compute_only):
            self._report(iteration.run("compute_only", index, None, self._factor("compute_only", index)))
        self._control.barrier("compute_only_done")

    def _factor(self, phase: str, index: int) -> float:
        """How many times as long this worker's computing takes in that iteration."""
        if self._slowdown is None:
            return 1.0
        configuration = self._configuration
        random = iteration_random(seed=configuration.seed, rank=configuration.rank, phase=phase, index=index)
        return self._slowdown.draw(random)

    def _hook(self, group: dist.ProcessGroup) -> GradientHook:
        return GradientHook(
            group,
            self._recorder,
            self._pacer,
            group_traces=isinstance(group, process_group.TestbedProcessGroup),
            keep_local=self._options.verify_gradients,
            compression=self._compression(),
        )

    def _compression(self) -> GradientCompression | None:
        configuration = self._configuration
        compressor = COMPRESSORS.parse(configuration.compression)
        if compressor.kind == "none":
            return None
        return GradientCompression(
            compressor, rank=configuration.rank, num_workers=configuration.num_workers, seed=configuration.seed
        )

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self._options.learning_rate, momentum=self._options.momentum)

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


class _Iteration:
    """One training step, timed. `recorder` is None where nothing is communicated."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Iterator[tuple[torch.Tensor, torch.Tensor]],
        recorder: BucketRecorder | None,
        clock: RunQueueClock,
        pacer: ComputePacer,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._data = data
        self._recorder = recorder
        self._clock = clock
        self._pacer = pacer

    def run(
        self, phase: str, index: int, verify: Callable[[], object] | None, slowdown: float
    ) -> control_pb2.Iteration:
        """Forward, backward with its communication, optimizer, computing `slowdown` times as long; returns the account
        of it."""
        cpu_before_s = time.process_time()
        start_s = time.monotonic()
        self._pacer.factor = slowdown
        self._pacer.begin()
        images, labels = next(self._data)
        loss = nn.functional.cross_entropy(self._model(images), labels)
        self._pacer.stretch()
        forward_end_s = time.monotonic()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._recorder is None:  # else the hook has, before each bucket
            self._pacer.stretch()
        backward_end_s = time.monotonic()
        if verify is not None:
            verify()
        self._pacer.begin()
        self._optimizer.step()
        self._pacer.stretch()
        optimizer_end_s = time.monotonic()
        handed_over_s, buckets = self._recorder.take() if self._recorder else (backward_end_s, [])
        delay = self._clock.lap()
        return control_pb2.Iteration(
            phase=phase,
            index=index,
            start_s=start_s,
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
            buckets=[
                control_pb2.Bucket(
                    sequence=bucket.sequence,
                    size_bytes=bucket.size_bytes,
                    enqueued_s=bucket.enqueued_s,
                    started_s=bucket.started_s,
                    first_byte_s=bucket.first_byte_s,
                    done_s=bucket.done_s,
                    payload_bytes=bucket.payload_bytes,
                    encode_s=bucket.encode_s,
                    decode_s=bucket.decode_s,
                )
                for bucket in buckets
            ],
            end_s=time.monotonic(),
        )


def _switch_statistics(group: dist.ProcessGroup) -> dict[str, Any] | None:
    """What a switch that adds has done for this worker; None without one."""
    return group.communicator.reducer_statistics() if isinstance(group, process_group.TestbedProcessGroup) else None


def _clock(group: dist.ProcessGroup) -> RunQueueClock:
    if isinstance(group, process_group.TestbedProcessGroup):
        return RunQueueClock(frozenset({group.communicator.thread_id}))
    return RunQueueClock(threads_named(_GLOO_THREADS))


def _finished(model: nn.Module) -> control_pb2.Finished:
    parameters = [parameter.detach().contiguous() for parameter in model.parameters()]
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.numpy().tobytes())
    return control_pb2.Finished(
        parameters_sha256=digest.hexdigest(),
        num_parameters=sum(parameter.numel() for parameter in parameters),
    )
