"""What happens to gradients on their way through DistributedDataParallel: timed, and on request checked.

Both stacks (the testbed's group and gloo) are driven by the same hook, so that the moment at which the last
gradient of an iteration is handed over means the same for both.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from testbed.worker.compute_pacer import ComputePacer
from testbed.worker.hand_over import HandOver
from transports.execution.gradients import GradientCompression
from transports.execution.trace import OperationTrace
from transports.torch_backend.ddp_hook import reduce_bucket
from transports.torch_backend.process_group import TestbedProcessGroup

GRADIENT_TOLERANCE: Final = 1e-6
"""Relative, in the L2 norm, against the float64 mean."""


class BucketRecorder:
    """Collects the traces of one iteration's buckets; written by communication threads, read by the
    trainer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_s = 0.0
        self._num_handed_over = 0
        self._traces: list[OperationTrace] = []

    def handed_over(self) -> tuple[int, float]:
        """A bucket goes to communication now; returns its number and the time."""
        now_s = time.monotonic()
        with self._lock:
            self._last_s = now_s
            self._num_handed_over += 1
            return self._num_handed_over, now_s

    def ready(self) -> None:
        """A layer's gradient is there now; what becomes of it, an engine decides."""
        with self._lock:
            self._last_s = time.monotonic()

    def completed(self, trace: OperationTrace) -> None:
        """An operation of the group is done; only all-reduces are buckets."""
        if trace.operation == "all_reduce":
            with self._lock:
                self._traces.append(trace)

    def pushed(self, trace: OperationTrace) -> None:
        """A gradient was given to servers, and parameters came back."""
        with self._lock:
            self._traces.append(trace)

    @property
    def last_s(self) -> float:
        """When the last gradient was handed over."""
        with self._lock:
            return self._last_s

    def take(self) -> list[OperationTrace]:
        """The traces of buckets that are done; then forgets them. The caller has waited for all that there are."""
        with self._lock:
            traces, self._traces = self._traces, []
        return traces


class GradientCheck:
    """Keeps local gradients, and compares what became of them with the mean of everybody's."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._local: dict[torch.Tensor, torch.Tensor] = {}

    def keep(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Keep a copy of this worker's own gradient before it is reduced."""
        assert gradient is not None, "backward has made it"
        self._local[parameter] = gradient.clone()

    def verify(self, parameters: list[torch.Tensor]) -> float:
        """The largest relative error of a synchronised gradient against the float64 mean of all local ones, which it
        gathers. Raises ArithmeticError above the tolerance.
        """
        size = self._group.size()
        worst = 0.0
        for number, parameter in enumerate(parameters):
            local = self._local.pop(parameter).contiguous()
            gathered = [torch.empty_like(local) for _ in range(size)]
            dist.all_gather(gathered, local, group=self._group)
            mean = torch.stack([gradient.double() for gradient in gathered]).mean(dim=0)
            assert parameter.grad is not None
            difference = torch.linalg.vector_norm(parameter.grad.double() - mean)
            norm = torch.linalg.vector_norm(mean)
            # A gradient that is exactly zero (the first iteration's, behind a layer that starts at zero)
            # stays so.
            error = float(difference / norm) if norm > 0 else float(difference)
            if not error <= GRADIENT_TOLERANCE:
                raise ArithmeticError(
                    f"the gradient of parameter {number} differs from the float64 mean by {error:.3g} "
                    f"(relative, L2), allowed is {GRADIENT_TOLERANCE:.0e}"
                )
            worst = max(worst, error)
        return worst


class GradientHook:
    """A DistributedDataParallel communication hook that does what DistributedDataParallel does without one.

    Without a hook torch multiplies by 1/size while it copies a gradient into the bucket (reducer.cpp,
    mark_variable_ready_dense); with one it leaves the bucket undivided. The same multiplication here keeps
    the numbers bit for bit.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        recorder: BucketRecorder,
        pacer: ComputePacer,
        *,
        group_traces: bool,
        check: GradientCheck | None = None,
        compression: GradientCompression | None = None,
    ) -> None:
        self._group = group
        self._recorder = recorder
        self._group_traces = group_traces
        self._compression = compression
        self._check = check
        self._hand_over = HandOver(pacer)

    def reduce(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """All-reduce the mean, compressed if so configured; completes with the bucket's buffer.

        Everything that this worker does with the bucket before it is handed over lies inside the pacer's wait, and
        where moments are due by a schedule it goes on with the next bucket at once.
        """
        if self._check is not None:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                self._check.keep(parameter, gradient)
        if self._compression is not None:
            return self._handed_over(bucket, partial(self._start_compressed, self._compression, bucket))
        buffer = bucket.buffer()
        buffer.mul_(1.0 / self._group.size())
        return self._handed_over(bucket, partial(self._start, buffer))

    def _handed_over(
        self, bucket: GradBucket, start: Callable[[], torch.futures.Future[torch.Tensor]]
    ) -> torch.futures.Future[torch.Tensor]:
        return self._hand_over.started_when_due(bucket.parameters(), start)

    def _start_compressed(
        self, compression: GradientCompression, bucket: GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        assert isinstance(self._group, TestbedProcessGroup), "a plan refuses compression over other groups"
        self._recorder.handed_over()
        return reduce_bucket(self._group, compression, bucket)

    def _start(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        number, enqueued_s = self._recorder.handed_over()
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None

        def finish(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            result = future.value()[0]
            if not self._group_traces:
                self._recorder.completed(
                    OperationTrace.from_outside(number, "all_reduce", buffer.nbytes, enqueued_s=enqueued_s)
                )
            return result

        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
        return reduced
