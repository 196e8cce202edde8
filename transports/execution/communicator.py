"""Operations that run in the background: collectives in the order given, on one communication thread per group, and
point-to-point messages beside them (`transports.execution.pairs`).

The communication thread owns the group's endpoint; nothing else touches it. Results are passed to waiters and, on
threads of their own, to callbacks, which may therefore wait for further operations.
"""

import atexit
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal
from weakref import WeakSet

import torch

from transports.channels.base import Channel, PeerStatistics
from transports.collectives.base import Collective
from transports.compression.base import Compressor
from transports.errors import OptionError, TransportError
from transports.execution.gradients import COMPRESSIBLE, GradientCompression
from transports.execution.operations import (
    ReduceOperation,
    Transport,
    check,
    check_parts,
    check_root,
    check_written,
    dtype_index,
)
from transports.execution.pairs import Message, PointToPoint
from transports.execution.trace import CodecAccount, OperationTrace
from transports.group import Group

Job = Callable[[Transport], None]
Callback = Callable[[BaseException | None], None]

NUM_CALLBACK_THREADS: Final = 32
"""A callback may wait for operations whose own callbacks must run meanwhile, so one thread is not enough."""


class Work:
    """An operation under way."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._finished = threading.Event()
        self._end_callbacks: list[Callback] = []
        self._callbacks: list[Callback] = []
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.source = -1
        """Of a receive that has ended, the rank that sent."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end. Raises what went wrong with the operation, or TimeoutError if it is not over by then."""
        if not self._finished.wait(timeout_s):
            raise TimeoutError(f"the operation timed out: it was not over within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Whether it is over, well or badly."""
        return self._finished.is_set()

    def add_done_callback(self, callback: Callback) -> None:
        """Call with the error or None when it is over, on a thread made for that, never on the communication thread.

        When the group has been closed by then, here and now."""
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(callback)
                return
        if not self._call(callback):
            callback(self._error)  # the group is closed and has no threads for it any more; the caller's will do

    def add_end_callback(self, callback: Callback) -> None:
        """The same before anybody who waits hears of it, on the thread that ends it: the callback must be quick, and
        must not wait for anything."""
        with self._lock:
            if not self._finished.is_set():
                self._end_callbacks.append(callback)
                return
        callback(self._error)

    def finish(self, error: BaseException | None) -> None:
        """Tell everybody."""
        self._error = error
        called = 0
        while True:
            with self._lock:
                new = self._end_callbacks[called:]
                if not new:
                    self._finished.set()
                    break
            for callback in new:
                callback(error)
            called += len(new)
        callbacks, self._callbacks, self._end_callbacks = self._callbacks, [], []  # whom they know can be let go
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callback) -> bool:
        """False when there are no threads for it any more: the group is closed, or the interpreter is going."""
        try:
            self._pool.submit(callback, self._error)
        except RuntimeError:
            return False
        return True


class _Task:
    """A job in the queue, which has the group's endpoint to itself while it runs."""

    def __init__(self, name: str, size_bytes: int, work: Work, job: Job, timeout_s: float) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.work = work
        self.job = job
        self.timeout_s = timeout_s
        self.enqueued_s = time.monotonic()
        self.started_s = self.enqueued_s


class Communicator:
    """One member of one group. Operations work in place on the caller's tensors, which must stay as they are until
    the operation is over. Every member must start the same collectives in the same order; sends and receives are
    matched by rank and tag, whatever else is under way."""

    def __init__(
        self,
        collective: Collective,
        channel: Channel,
        group: Group,
        on_trace: Callable[[OperationTrace], None] | None = None,
        compression: Compressor | None = None,
    ) -> None:
        """Connect to all members. `on_trace` is called where an operation ends, on the communication thread or one of
        a pair's, never twice at a time, so it must be quick. `compression`
        changes every all_reduce, by `sum` or `avg`, of a type in `transports.execution.gradients.COMPRESSIBLE`; what it
        keeps, it keeps for tensors of one shape, as if they were one parameter's gradients.

        Raises what :meth:`Channel.open` raises.
        """
        self._compression = _compression(compression, group)
        self.rank = group.rank
        self.size = group.size
        self._timeout_s = group.timeout_s
        self._on_trace = on_trace
        self._transport = Transport(collective, channel, group)
        self._endpoint = self._transport.endpoint
        self._pool = ThreadPoolExecutor(NUM_CALLBACK_THREADS, f"callback of {group.name}")
        self._point_to_point = PointToPoint(channel, group, self._endpoint.departure)
        self._tasks: deque[_Task] = deque()
        self._active: _Task | None = None
        self._changed = threading.Condition()
        self._tracing = threading.Lock()
        self._num_done = 0
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"communication of {group.name}", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    @property
    def thread_id(self) -> int:
        """The kernel's id of the communication thread."""
        assert self._thread.native_id is not None, "a started thread has an id"
        return self._thread.native_id

    def statistics(self) -> dict[int, PeerStatistics]:
        """What the connections to each peer have carried."""
        statistics = dict(self._endpoint.statistics())
        for peer, more in self._point_to_point.statistics().items():
            statistics[peer] += more
        return statistics

    def congestion(self) -> dict[int, str]:
        """By peer, the congestion control the kernel reports."""
        return self._endpoint.congestion()

    def reducer_statistics(self) -> dict[str, Any] | None:
        """What the aggregating switch has done for this member; None without one."""
        reducer = self._transport.reducer
        return None if reducer is None else reducer.statistics()

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> Work:
        """Reduce over all ranks, in place. `avg` is the sum divided by the number of ranks."""
        check(tensor, op)
        check_written(tensor)
        compression = self._compression
        if compression is not None and tensor.dtype in COMPRESSIBLE and op in ("sum", "avg"):
            return self.submit(
                "all_reduce", lambda transport: compression.all_reduce(transport, tensor, op), tensor.nbytes
            )
        return self.submit("all_reduce", lambda transport: transport.all_reduce(tensor, op), tensor.nbytes)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> Work:
        """Give all ranks the root's values, in place."""
        check(tensor)
        check_written(tensor)
        check_root(root, self.size)
        return self.submit("broadcast", lambda transport: transport.broadcast(tensor, root), tensor.nbytes)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Work:  # noqa: A002 (torch's word)
        """Rank r's input becomes part r of everybody's output."""
        check(output)
        check(input)
        check_written(output)
        check_parts(output, input, self.size)
        return self.submit("all_gather", lambda transport: transport.all_gather(output, input), output.nbytes)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 (torch's word)
        op: ReduceOperation = "sum",
    ) -> Work:
        """Rank r's output becomes the reduction over all ranks of part r of their inputs, which stay as they are."""
        check(output, op)
        check(input, op)
        check_written(output)
        check_parts(input, output, self.size)
        return self.submit(
            "reduce_scatter", lambda transport: transport.reduce_scatter(output, input, op), input.nbytes
        )

    def reduce(self, tensor: torch.Tensor, root: int = 0, op: ReduceOperation = "sum") -> Work:
        """The root's values become the reduction over all ranks; the others' stay as they are."""
        check(tensor, op)
        check_root(root, self.size)
        if self.rank == root:
            check_written(tensor)
        return self.submit("reduce", lambda transport: transport.reduce(tensor, root, op), tensor.nbytes)

    def gather(self, output: torch.Tensor | None, input: torch.Tensor, root: int = 0) -> Work:  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others give None."""
        check(input)
        check_root(root, self.size)
        self._check_whole("output", output, input, root)
        if output is not None:
            check_written(output)
        return self.submit("gather", lambda transport: transport.gather(output, input, root), self.size * input.nbytes)

    def scatter(self, output: torch.Tensor, input: torch.Tensor | None, root: int = 0) -> Work:  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others give None."""
        check(output)
        check_written(output)
        check_root(root, self.size)
        self._check_whole("input", input, output, root)
        return self.submit(
            "scatter", lambda transport: transport.scatter(output, input, root), self.size * output.nbytes
        )

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Work:
        """inputs[p] of rank r becomes outputs[r] of rank p; lengths may differ from pair to pair."""
        if len(outputs) != self.size or len(inputs) != self.size:
            raise OptionError(f"{len(outputs)} outputs and {len(inputs)} inputs for {self.size} ranks")
        for tensor in (*outputs, *inputs):
            check(tensor)
            if tensor.dtype != inputs[0].dtype:
                raise OptionError(f"{tensor.dtype} does not go with {inputs[0].dtype}")
        for output in outputs:
            check_written(output)
        own_output, own_input = outputs[self.rank].numel(), inputs[self.rank].numel()
        if own_output != own_input:
            raise OptionError(f"rank {self.rank} sends itself {own_input} elements and expects {own_output}")
        size_bytes = sum(tensor.nbytes for tensor in inputs)
        return self.submit("all_to_all", lambda transport: transport.all_to_all(outputs, inputs), size_bytes)

    def barrier(self, timeout_s: float | None = None) -> Work:
        """Over when every rank has come here, within this timeout or the group's."""
        return self.submit("barrier", lambda transport: transport.barrier(), 0, timeout_s)

    def send(self, tensor: torch.Tensor, peer: int, tag: int = 0) -> Work:
        """Send to one rank. Over when the tensor may be changed again, which may need the receive to be posted; one
        that is not matched within the group's timeout fails."""
        check(tensor)
        self._check_peer(peer)
        return self._post("send", tensor, peer, tag)

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int = 0) -> Work:
        """Receive from one rank, or from any (None; see :attr:`Work.source`), the first message with that tag that is
        not taken. A message that is shorter fills the beginning of the tensor; one that is longer, or of another type,
        is a FrameMismatchError, and lost."""
        check(tensor)
        check_written(tensor)
        if peer is not None:
            self._check_peer(peer)
        elif self.size == 1:
            raise OptionError("a group of one rank has nobody to receive from")
        return self._post("receive", tensor, peer, tag)

    def _post(self, kind: Literal["send", "receive"], tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
        if not -(2**63) <= tag < 2**63:
            raise OptionError(f"tag {tag} does not fit 64 bits")
        work, size_bytes = self._work(), tensor.nbytes

        def finish(message: Message, error: BaseException | None) -> None:
            work.source = -1 if message.peer is None else message.peer
            if error is None:
                self._trace(kind, size_bytes, message.posted_s, message.started_s)
            work.finish(error)

        dtype = dtype_index(tensor.dtype)
        message = Message(kind, tensor, peer, tag=tag, dtype=dtype, timeout_s=self._timeout_s, finish=finish)
        self._point_to_point.post(message)
        return work

    def submit(self, name: str, job: Job, size_bytes: int, timeout_s: float | None = None) -> Work:
        """Run a job of one or more phases on the communication thread, with nothing of the group's in between.

        The timeout (the group's unless one is given) counts for the whole job, from when it starts.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._enqueue(_Task(name, size_bytes, self._work(), job, limit_s))

    def _check_whole(self, name: str, whole: torch.Tensor | None, part: torch.Tensor, root: int) -> None:
        if whole is not None and self.rank == root:
            check(whole)
            check_parts(whole, part, self.size)
        elif (whole is None) == (self.rank == root):
            raise OptionError(f"rank {root} is the root: it gives an {name}, and nobody else does")

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise OptionError(f"rank {self.rank} of {self.size} cannot exchange messages with rank {peer}")

    def _work(self) -> Work:
        return Work(self._pool)

    def _enqueue(self, task: _Task) -> Work:
        with self._changed:
            error = self._error
            if error is None:
                self._tasks.append(task)
                self._changed.notify()
        if error is not None:
            task.work.finish(error)
        return task.work

    def _run(self) -> None:
        """The communication thread."""
        error: BaseException = TransportError(f"rank {self.rank} closed the group itself")
        try:
            while (task := self._take()) is not None:
                self._run_task(task)
        except BaseException as failure:  # noqa: BLE001 (it is raised where the operation is waited for)
            error = failure
        # Nothing works after an error: the ranks are out of step. Closing lets the peers notice at once.
        self._transport.close()
        with self._changed:
            self._error = error
            unfinished = list(self._tasks) if self._active is None else [self._active, *self._tasks]
            self._tasks.clear()
            self._active = None
        for task in unfinished:
            task.work.finish(error)
        self._point_to_point.close(error if isinstance(error, TransportError) else TransportError(str(error)))

    def _take(self) -> _Task | None:
        """The next task, or None when the group is being closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closing)
            if self._closing:
                return None
            self._active = self._tasks.popleft()
            return self._active

    def _run_task(self, task: _Task) -> None:
        transport = self._transport
        task.started_s = time.monotonic()
        transport.begin(task.started_s + task.timeout_s)
        try:
            task.job(transport)
        except Exception as error:
            if transport.has_begun:
                raise
            self._active = None  # nothing has been sent of it: the others know nothing, and the group is as it was
            task.work.finish(error)
            return
        self._trace(
            task.name, task.size_bytes, task.enqueued_s, task.started_s, transport.first_byte_s, transport.codec
        )
        self._active = None
        task.work.finish(None)

    def _trace(
        self,
        name: str,
        size_bytes: int,
        enqueued_s: float,
        started_s: float,
        first_byte_s: float | None = None,
        codec: CodecAccount | None = None,
    ) -> None:
        """Something has just ended well, on whatever thread."""
        if self._on_trace is None:
            return
        done_s = time.monotonic()
        with self._tracing:
            self._num_done += 1
            self._on_trace(
                OperationTrace(
                    sequence=self._num_done,
                    operation=name,
                    size_bytes=size_bytes,
                    enqueued_s=enqueued_s,
                    started_s=started_s,
                    first_byte_s=done_s if first_byte_s is None else first_byte_s,
                    done_s=done_s,
                    payload_bytes=(codec and codec.payload_bytes) or size_bytes,
                    encode_s=codec.encode_s if codec else 0.0,
                    decode_s=codec.decode_s if codec else 0.0,
                )
            )

    def close(self) -> None:
        """Leave the group. What is still queued or under way fails; wait for it first. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            if self._active is not None:
                self._transport.cancel()
        self._endpoint.close()
        self._point_to_point.close(TransportError(f"rank {self.rank} closed the group itself"))
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._pool.shutdown(wait=False)
        _OPEN.discard(self)


def _compression(compressor: Compressor | None, group: Group) -> GradientCompression | None:
    if compressor is None or not compressor.compresses:
        return None
    seed = zlib.crc32(group.name.encode())
    return GradientCompression(compressor, rank=group.rank, num_workers=group.size, seed=seed)


_OPEN: Final[WeakSet[Communicator]] = WeakSet()


def _close_all() -> None:
    """A process that ends without closing its groups still leaves them in good order."""
    for communicator in list(_OPEN):
        communicator.close()


atexit.register(_close_all)
# A forked child does not own its parent's groups: saying goodbye there would be a lie.
os.register_at_fork(after_in_child=_OPEN.clear)
