# ruff: noqa: SLF001 - torch offers the choice of an address only below its public face
"""torch's own gloo, bound to one address and given the face of our communicator."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from transports.baselines.base import STACKS, CommunicatorLike, OnTrace, Stack, WorkLike
from transports.channels.tcp_info import SEGMENT_HEADERS_BYTES
from transports.collectives.base import COLLECTIVES, Collective
from transports.errors import OptionError
from transports.execution.trace import OperationTrace
from transports.group import Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from transports.execution.operations import ReduceOperation

_NUM_THREADS: Final = 2
"""What torch itself gives a gloo group."""
_PREAMBLE_BYTES: Final = 48
"""Of a message that says no more than that a buffer is ready: `Op::preamble` in `gloo/transport/tcp/pair.h`."""


@STACKS.register
class Gloo(Stack):
    """https://github.com/pytorch/gloo: ring all-reduce in C++ over TCP, two threads per group."""

    torch_backend: ClassVar[str | None] = "gloo"
    # It sends a part of the ring in two messages at least; of each, the receiver may first have said that it is ready
    # (in a ring, everybody sends as many as it receives), and it may end with a segment of its own.
    more_message_bytes: ClassVar[int] = 2 * (_PREAMBLE_BYTES + 2 * SEGMENT_HEADERS_BYTES)

    @property
    def schedule(self) -> Collective:
        """Its all-reduce is the ring (`gloo/allreduce.h`: UNSPECIFIED stands for RING)."""
        return COLLECTIVES.parse("ring")

    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Connect over the group's address. Raises OptionError unless the group's store is one of torch's,
        and RuntimeError when a member does not appear in time."""
        return _GlooCommunicator(group, on_trace)


class _GlooWork:
    """torch's work, with our words. What follows the exchange is done once, whoever waits first: torch's reduce_scatter
    copies its result anew for everybody who waits, when the caller may long have put something else there."""

    def __init__(self, work: "dist.Work", finish: Callable[[], None] | None) -> None:
        self._work = work
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = False
        self._waiter: Future[None] | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        if self._waiter is not None:
            self._waiter.result(timeout_s)
        elif not self._ended:
            if timeout_s is None:
                self._work.wait()
            else:
                self._work.wait(timedelta(seconds=timeout_s))
            self._end()

    def _end(self) -> None:
        with self._lock:
            if not self._ended and self._finish is not None:
                self._finish()
            self._ended = True

    def proceed(self, *, waiting: bool) -> None:
        """gloo has threads of its own."""

    def done(self) -> bool:
        return self._work.is_completed()

    def add_done_callback(self, callback: Callable[[BaseException | None], None], /) -> None:
        def call(wait: Callable[[], object]) -> None:
            try:
                wait()
            except RuntimeError as error:
                callback(error)
                return
            self._end()
            callback(None)

        try:
            future = self._work.get_future()
        except RuntimeError:  # reduce_scatter's has none: somebody must wait for it
            if self._ended:
                callback(None)
                return
            if self._waiter is None:
                self._waiter = Future()
                threading.Thread(target=self._wait_once, args=(self._waiter,), daemon=True).start()
            self._waiter.add_done_callback(lambda ended: callback(ended.exception()))
        else:
            # The work itself is marked as done only after its future's callbacks: waiting for it here would hang.
            future.add_done_callback(lambda ended: call(ended.wait))

    add_end_callback = add_done_callback

    def _wait_once(self, waiter: "Future[None]") -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            waiter.set_exception(error)
        else:
            self._end()
            waiter.set_result(None)


class _GlooCommunicator:
    """A ProcessGroupGloo of its own, outside torch.distributed's default group."""

    def __init__(self, group: Group, on_trace: OnTrace | None) -> None:
        from torch._C import _distributed_c10d as c10d

        if not isinstance(group.store, c10d.Store):
            raise OptionError("gloo meets through one of torch's stores (FileStore, TCPStore)")
        gloo: Any = c10d.ProcessGroupGloo  # nearly everything is missing in its stub
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=group.address)]
        options._timeout = timedelta(seconds=group.timeout_s)
        options._threads = _NUM_THREADS
        store = c10d.PrefixStore(f"gloo/{group.name}", group.store)
        self._gloo = gloo(store, group.rank, group.size, options)
        self._on_trace = on_trace
        self._sequence = itertools.count()
        self.rank: Final = group.rank
        self.size: Final = group.size
        self.thread_id: Final = None

    def all_reduce(self, tensor: "torch.Tensor", op: "ReduceOperation" = "sum") -> WorkLike:
        """Every member's tensor becomes the reduction of all."""
        import torch.distributed as dist

        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
        return self._start("all_reduce", tensor.nbytes, lambda: self._gloo.allreduce([tensor], options))

    def broadcast(self, tensor: "torch.Tensor", root: int) -> WorkLike:
        """Every member's tensor becomes the root's."""
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank = root
        return self._start("broadcast", tensor.nbytes, lambda: self._gloo.broadcast([tensor], options))

    def all_gather(self, output: "torch.Tensor", input: "torch.Tensor") -> WorkLike:  # noqa: A002 - torch's word
        """`output` becomes all members' inputs, by rank."""
        return self._start("all_gather", output.nbytes, lambda: self._gloo._allgather_base(output, input))

    def reduce_scatter(
        self,
        output: "torch.Tensor",
        input: "torch.Tensor",  # noqa: A002 - torch's word
        op: "ReduceOperation" = "sum",
    ) -> WorkLike:
        """`output` becomes this rank's part of the reduction of all inputs."""
        import torch.distributed as dist

        options = dist.ReduceScatterOptions()
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
        return self._start(
            "reduce_scatter", input.nbytes, lambda: self._gloo._reduce_scatter_base(output, input, options)
        )

    def reduce(self, tensor: "torch.Tensor", root: int, op: "ReduceOperation" = "sum") -> WorkLike:
        """The root's tensor becomes the reduction over all members; the others' are left with partial ones."""
        import torch.distributed as dist

        options = dist.ReduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
        options.rootRank = root
        return self._start("reduce", tensor.nbytes, lambda: self._gloo.reduce([tensor], options))

    def gather(self, output: "torch.Tensor | None", input: "torch.Tensor", root: int) -> WorkLike:  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others give None."""
        import torch.distributed as dist

        options = dist.GatherOptions()
        options.rootRank = root
        parts = [] if output is None else [list(output.view(-1).chunk(self.size))]
        return self._start(
            "gather", self.size * input.nbytes, lambda: self._gloo.gather(parts, [input.view(-1)], options)
        )

    def scatter(self, output: "torch.Tensor", input: "torch.Tensor | None", root: int) -> WorkLike:  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others give None."""
        import torch.distributed as dist

        options = dist.ScatterOptions()
        options.rootRank = root
        parts = [] if input is None else [list(input.view(-1).chunk(self.size))]
        return self._start(
            "scatter", self.size * output.nbytes, lambda: self._gloo.scatter([output.view(-1)], parts, options)
        )

    def all_to_all(self, outputs: "Sequence[torch.Tensor]", inputs: "Sequence[torch.Tensor]") -> WorkLike:
        """inputs[p] of rank r becomes outputs[r] of rank p. gloo's own takes one buffer of each: the tensors are copied
        into it and out of it, as ours are."""
        import torch

        sent, received = (torch.cat([tensor.view(-1) for tensor in tensors]) for tensors in (inputs, outputs))
        sent_counts, received_counts = ([tensor.numel() for tensor in tensors] for tensors in (inputs, outputs))

        def put_back() -> None:
            for output, part in zip(outputs, torch.split(received, received_counts), strict=True):
                output.copy_(part.view(output.shape))

        return self._start(
            "all_to_all",
            sent.nbytes,
            lambda: self._gloo.alltoall_base(received, sent, received_counts, sent_counts),
            put_back,
        )

    def barrier(self) -> WorkLike:
        """Done when every member has called it."""
        return self._start("barrier", 0, self._gloo.barrier)

    def close(self) -> None:
        """Leave the group; pending operations of the others fail."""
        self._gloo.shutdown()

    def _start(
        self,
        operation: str,
        size_bytes: int,
        start: Callable[[], "dist.Work"],
        finish: Callable[[], None] | None = None,
    ) -> WorkLike:
        enqueued_s = time.monotonic()
        work = _GlooWork(start(), finish)
        on_trace = self._on_trace
        if on_trace is not None:
            sequence = next(self._sequence)

            def ended(_: BaseException | None) -> None:
                on_trace(OperationTrace.from_outside(sequence, operation, size_bytes, enqueued_s=enqueued_s))

            work.add_done_callback(ended)
        return work
