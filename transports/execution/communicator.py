"""Operations that run in the background: collectives in the order given, on one communication thread per group, and
point-to-point messages beside them (`transports.execution.pairs`).

Whoever runs the active collective owns the group's endpoint; nothing else touches it. That is the communication thread,
or the caller's own: one that waits at once for the only collective there is carries it out, so that a short message
costs no change of threads (docs/decisions/0082-whoever-waits-carries-it-out.md). Results are passed to waiters and, on
threads of their own, to callbacks, which may therefore wait for further operations.
"""

import atexit
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal
from weakref import WeakSet

import torch

from transports.channels.base import Channel, PeerStatistics
from transports.collectives.base import Collective, Operation
from transports.compression.base import Compressor
from transports.errors import OptionError, TransportError
from transports.execution.callbacks import Callback, CallbackThreads, finish_callbacks
from transports.execution.executor import Program
from transports.execution.gradients import COMPRESSIBLE, GradientCompression
from transports.execution.operations import (
    ReduceOperation,
    Transport,
    check,
    check_memory,
    check_parts,
    check_root,
    check_written,
    dtype_index,
)
from transports.execution.pairs import Message, PointToPoint
from transports.execution.tensors import writing_mode
from transports.execution.trace import CodecAccount, OperationTrace
from transports.group import Group

Job = Callable[[Transport], None]

NUM_CALLBACK_THREADS: Final = 32


HAND_OVER_S: Final = 2e-3
"""An operation that finds the group idle waits so long, at most, for whoever started it to wait for it."""


class _Guard:
    """One lock for all works of a process, where each would have to make one of its own: for a few lines at a time that
    make nothing and call nothing, so that neither a finalizer nor a signal's handler, which may wait for an operation,
    can come between."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked child, where whoever holds it is not."""
        self.lock = threading.Lock()


_guard: Final = _Guard()
os.register_at_fork(after_in_child=_guard.renew)


class _Callbacks:
    """What is to be called at one moment of an operation, each once: by whoever brings the moment about, or, what is
    added later, by whoever adds it. Entries stand in the order in which they came, and one mark among them says which
    are early: appending to a list is one step for all threads, so that nobody needs a lock."""

    __slots__ = ("_entries", "_num_called")

    def __init__(self) -> None:
        self._entries: list[tuple[Callback] | None] = []
        self._num_called = 0

    def add(self, callback: Callback) -> bool:
        """Whether it will be called; if not, it is for the caller to call it."""
        entries, entry = self._entries, (callback,)
        if entries and entries[0] is None:
            return False
        entries.append(entry)
        return None not in entries or any(each is entry for each in entries[: entries.index(None)])

    def call(self, call: Callable[[Callback], object]) -> None:
        """The moment has come: have all early ones called. Idempotent: one that an exception of a signal's handler has
        cut short is gone on with, and the callback that it came upon is called again."""
        entries = self._entries
        if None not in entries:
            entries.append(None)
        while self._num_called < entries.index(None):
            entry = entries[self._num_called]
            assert entry is not None, "the mark comes later"
            call(entry[0])
            self._num_called += 1

    def forget(self) -> None:
        """All have been called, and what they know can be let go."""
        self._entries = [None]


class Work:
    """An operation under way."""

    __slots__ = ("_callbacks", "_end_callbacks", "_error", "_pool", "_waiting", "is_over", "source")

    def __init__(self, pool: CallbackThreads) -> None:
        self._pool = pool
        self.is_over = False
        self._waiting: threading.Lock | None = None
        """Held until the end; made by the first who has to wait."""
        self._end_callbacks = _Callbacks()
        self._callbacks = _Callbacks()
        self._error: BaseException | None = None
        self.source = -1
        """Of a receive that has ended, the rank that sent."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end. Raises what went wrong with the operation, or TimeoutError if it is not over by then."""
        if not self.is_over:
            self.proceed(waiting=timeout_s is None)
            if not self.is_over and not self._comes(timeout_s):
                raise TimeoutError(f"the operation timed out: it was not over within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def _comes(self, timeout_s: float | None) -> bool:
        fresh = threading.Lock()
        fresh.acquire()
        with _guard.lock:
            waiting = self._waiting = self._waiting or fresh
        if self.is_over:  # finish() may have looked for it just before it was there
            return True
        if not waiting.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            return False
        with suppress(RuntimeError):  # finish() may have released it once more
            waiting.release()
        return True

    def proceed(self, *, waiting: bool) -> None:
        """See :class:`transports.baselines.base.WorkLike`."""

    def done(self) -> bool:
        """Whether it is over, well or badly."""
        if not self.is_over:
            self.proceed(waiting=False)
        return self.is_over

    def add_done_callback(self, callback: Callback) -> None:
        """Call with the error or None when it is over, on a thread made for that, never on the communication thread.

        When the group has been closed by then, here and now."""
        if self._callbacks.add(callback):
            self.proceed(waiting=False)
        elif not self._call(callback):
            callback(self._error)  # the group is closed and has no threads for it any more; the caller's will do

    def add_end_callback(self, callback: Callback) -> None:
        """The same before anybody who waits hears of it, on the thread that ends it: the callback must be quick, and
        must not wait for anything."""
        if not self._end_callbacks.add(callback):
            callback(self._error)

    def finish(self, error: BaseException | None) -> None:
        """Tell everybody. Idempotent: where an exception of a signal's handler has cut it short, another thread goes on
        with it."""
        if not self.is_over:
            self._error = error
            self._end_callbacks.call(lambda callback: callback(error))
            self.is_over = True
        if self._waiting is not None:
            with suppress(RuntimeError):  # it was released before
                self._waiting.release()
        self._end_callbacks.forget()
        self._callbacks.call(self._call)
        self._callbacks.forget()

    def _call(self, callback: Callback) -> bool:
        """False when there are no threads for it any more: the group is closed, or the interpreter is going."""
        try:
            self._pool.submit(callback, self._error)
        except RuntimeError:
            return False
        return True


class _Task(Work):
    """A collective in the queue, which has the group's endpoint to itself while it runs."""

    __slots__ = (
        "_communicator", "deferred", "enqueued_s", "is_traced", "job", "mode", "name", "program", "sequence",
        "size_bytes", "started_s", "timeout_s", "values",
    )  # fmt: skip

    def __init__(self, communicator: "Communicator", name: str, size_bytes: int, timeout_s: float) -> None:
        super().__init__(communicator.pool)
        self._communicator = communicator
        self.name = name
        self.size_bytes = size_bytes
        self.timeout_s = timeout_s
        self.job: Job | None = None
        self.mode: Final = writing_mode()
        """In which the job writes."""
        self.program: Program | None = None
        """Instead of a job: one that can be gone on with by another thread."""
        self.values: torch.Tensor | None = None
        """What is exchanged."""
        self.sequence = 0
        """Of an exchange that has begun."""
        self.deferred = False
        """Whether it waits to be waited for."""
        self.is_traced = False
        self.enqueued_s = time.monotonic()
        self.started_s = self.enqueued_s

    def proceed(self, *, waiting: bool) -> None:
        """See :class:`transports.baselines.base.WorkLike`."""
        if self.deferred:
            self._communicator.proceed(self, waiting=waiting)
        elif waiting:
            self._communicator.check_may_wait()

    def finish(self, error: BaseException | None) -> None:
        """Tell everybody. Idempotent."""
        super().finish(error)
        self.job = self.program = self.values = None  # whoever keeps the work does not keep the tensors


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
        """Connect to all members. `on_trace` is called where an operation ends, on the communication thread, the
        caller's or one of a pair's, never twice at a time, so it must be quick. `compression`
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
        self.pool = CallbackThreads(NUM_CALLBACK_THREADS, f"callback of {group.name}")
        """What works call back on."""
        self._nothing = torch.zeros(1, dtype=torch.uint8, device="cpu")
        """What a barrier exchanges."""
        self._point_to_point = PointToPoint(channel, group, self._endpoint.departure)
        self._tasks: deque[_Task] = deque()
        self._active: _Task | None = None
        self._lock = threading.RLock()  # a signal's handler may close the group
        self._doorbell = threading.Lock()
        """Released to wake the communication thread."""
        self._has_deferred = self._is_watching = False
        self._helper: int | None = None
        """The thread of a caller that carries out the active task."""
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
        if (task := self._single("all_reduce", tensor, op)) is not None:
            return task
        return self.submit("all_reduce", lambda transport: transport.all_reduce(tensor, op), tensor.nbytes)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> Work:
        """Give all ranks the root's values, in place."""
        check(tensor)
        check_written(tensor)
        check_root(root, self.size)
        if (task := self._single("broadcast", tensor, root=root)) is not None:
            return task
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
        if (task := self._single("barrier", self._nothing, timeout_s=timeout_s)) is not None:
            return task
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
        work, size_bytes = Work(self.pool), tensor.nbytes

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
        task = _Task(self, name, size_bytes, self._timeout_s if timeout_s is None else timeout_s)
        task.job = job
        self._enqueue(task, deferred=False)
        return task

    def _single(
        self,
        operation: Operation,
        tensor: torch.Tensor,
        op: ReduceOperation = "sum",
        root: int = 0,
        timeout_s: float | None = None,
    ) -> Work | None:
        """An operation of one tensor in its own memory, whose schedule the endpoint runs by itself: whoever waits for
        it at once carries it out. None for any other."""
        program = self._transport.single(operation, tensor, op, root)
        if program is None:
            return None
        size_bytes = 0 if operation == "barrier" else tensor.nbytes
        task = _Task(self, operation, size_bytes, self._timeout_s if timeout_s is None else timeout_s)
        task.program, task.values = program, tensor
        self._enqueue(task, deferred=True)
        return task

    def _check_whole(self, name: str, whole: torch.Tensor | None, part: torch.Tensor, root: int) -> None:
        if whole is not None and self.rank == root:
            check(whole)
            check_parts(whole, part, self.size)
        elif (whole is None) == (self.rank == root):
            raise OptionError(f"rank {root} is the root: it gives an {name}, and nobody else does")

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise OptionError(f"rank {self.rank} of {self.size} cannot exchange messages with rank {peer}")

    def _enqueue(self, task: _Task, *, deferred: bool) -> None:
        """To be run in its turn; `deferred`: where the group is idle, by whoever waits for it at once. Waking another
        thread, and being woken by it, takes longer than a short message."""
        rings = False
        with self._lock:
            error = self._error
            if error is None:
                idle = self._active is None and not self._tasks
                task.deferred = deferred and idle
                if self._tasks:
                    self._tasks[0].deferred = False
                self._tasks.append(task)
                rings = self._active is None
                if task.deferred:
                    self._has_deferred = True
                    rings = not self._is_watching
        if error is not None:
            task.finish(error)
        elif rings:
            self._ring()

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it has been rung, and not been heard
            self._doorbell.release()

    def proceed(self, task: _Task, *, waiting: bool) -> None:
        """Carry out a deferred task here, for `waiting`, or have the communication thread do it."""
        if not waiting:
            task.deferred = False
            self._ring()
            return
        try:
            if self._takes(task):
                self._execute(task)
                task.finish(None)
                self._active = self._helper = None
                # Whoever appended a task before it could see that none is active has left it to us to ring.
                if not self._tasks and not self._closing:
                    return
            self._ring()
        except BaseException as error:
            self._hand_over(task)
            if not isinstance(error, TransportError):
                raise

    def _takes(self, task: _Task) -> bool:
        """Whether this thread is the one to carry out a deferred task. An exception of a signal's handler at any point
        of it leaves what :meth:`_hand_over` puts right."""
        helper = threading.get_ident()
        with self._lock:
            if not task.deferred or self._closing or self._active is not None:
                return False
            task.deferred = False
            if not self._tasks or self._tasks[0] is not task:
                return False
            self._active, self._helper = task, helper
            self._tasks.popleft()
            return True

    def _hand_over(self, task: _Task) -> None:
        """The communication thread goes on with what this one has taken: after an exception of a signal's handler to
        the end of it, after an error of the transport's to the end of the group."""
        with self._lock:
            task.deferred = False
            if self._active is task and self._helper == threading.get_ident():
                if not self._tasks or self._tasks[0] is not task:
                    self._tasks.appendleft(task)
                self._active = self._helper = None
        self._ring()

    def check_may_wait(self) -> None:
        """Raises RuntimeError in a signal's handler that came upon this thread while it carries out an operation:
        what the handler waits for would come after that, and so never."""
        if self._helper == threading.get_ident():
            raise RuntimeError(
                "a signal's handler cannot wait for a collective while its thread is carrying one out for this group; "
                "note the signal, and act on it afterwards"
            )

    def _run(self) -> None:
        """The communication thread."""
        failure: BaseException | None = None
        try:
            while (task := self._take()) is not None:
                self._run_task(task)
        except BaseException as raised:  # noqa: BLE001 (it is raised where the operation is waited for)
            failure = raised
        # Nothing works after an error: the ranks are out of step. Closing lets the peers notice at once.
        try:
            self._transport.close()
        except Exception as raised:  # noqa: BLE001 (whoever waits hears of it, or of what came before)
            failure = failure or raised
        error = failure or TransportError(f"rank {self.rank} closed the group itself")
        with self._lock:
            self._error = error
            unfinished = list(self._tasks) if self._active is None else [self._active, *self._tasks]
            self._tasks.clear()
            self._active = None
        for task in unfinished:
            task.finish(error)
        self._point_to_point.close(
            error if isinstance(error, TransportError) else TransportError(str(error)), in_order=failure is None
        )
        if self._closing:
            self.pool.shutdown()

    def _take(self) -> _Task | None:
        """The next task, or None when the group is being closed."""
        while True:
            if self._tasks or self._closing:
                with self._lock:
                    if self._helper is None:
                        if self._closing:
                            return None
                        if self._tasks and not self._may_be_waited_for(self._tasks[0]):
                            self._active = self._tasks.popleft()
                            return self._active
            # Without the lock, in this order: whoever defers a task sets `_has_deferred`, and then looks whether it has
            # to ring.
            self._is_watching = False
            if self._has_deferred:
                self._has_deferred = False
                self._is_watching = True
            self._doorbell.acquire(timeout=HAND_OVER_S if self._is_watching else -1)

    def _may_be_waited_for(self, task: _Task) -> bool:
        """Whether who started it may yet come and carry it out."""
        if task.deferred and time.monotonic() - task.enqueued_s < HAND_OVER_S:
            self._has_deferred = True
            return True
        task.deferred = False
        return False

    def _run_task(self, task: _Task) -> None:
        error: BaseException | None = None
        try:
            self._execute(task)
        except Exception as failure:
            if self.size > 1:
                # Whatever was sent of it: the others may have done their part, and wait for nobody (a gather's senders
                # do not), so that the next operation here would be paired with their last one.
                raise
            error = failure
        self._active = None
        task.finish(error)

    def _execute(self, task: _Task) -> None:
        """On whatever thread has taken it."""
        if task.is_over:  # and it remains to tell everybody
            return
        transport = self._transport
        if not task.sequence:
            task.started_s = time.monotonic()
            transport.begin(task.started_s + task.timeout_s)
        if task.job is not None:
            with task.mode():
                task.job(transport)
        else:
            assert task.program is not None, "a task is one or the other"
            assert task.values is not None
            check_memory(task.values)  # since it was posted, it may have been freed
            task.sequence = task.sequence or transport.next_sequence
            transport.exchange(task.program, {"output": task.values}, task.sequence)
        if self._on_trace is not None and not task.is_traced:
            self._trace(
                task.name,
                task.size_bytes,
                task.enqueued_s,
                task.started_s,
                transport.first_byte_s,
                transport.codec,
                task,
            )

    def _trace(
        self,
        name: str,
        size_bytes: int,
        enqueued_s: float,
        started_s: float,
        first_byte_s: float | None = None,
        codec: CodecAccount | None = None,
        task: _Task | None = None,
    ) -> None:
        """Something has just ended well, on whatever thread."""
        if self._on_trace is None:
            return
        done_s = time.monotonic()
        with self._tracing:
            trace = OperationTrace(
                sequence=self._num_done + 1,
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
            self._num_done += 1
            if task is not None:
                task.is_traced = True  # and nothing in between where a signal's handler may come
            self._on_trace(trace)

    def close(self) -> None:
        """Leave the group. What is still queued or under way fails; wait for it first. Idempotent."""
        with self._lock:
            self._closing = True
            if self._active is not None:
                self._transport.cancel()
            # A signal's handler that came upon this thread in the middle of an operation, which it has to leave first.
            is_helper = self._helper == threading.get_ident()
        self._ring()
        self._endpoint.close()
        self._point_to_point.close(TransportError(f"rank {self.rank} closed the group itself"), in_order=True)
        if threading.current_thread() is not self._thread and not is_helper:
            self._thread.join()
            self.pool.shutdown()
        _OPEN.discard(self)


def _compression(compressor: Compressor | None, group: Group) -> GradientCompression | None:
    if compressor is None or not compressor.compresses:
        return None
    seed = zlib.crc32(group.name.encode())
    return GradientCompression(compressor, rank=group.rank, num_workers=group.size, seed=seed)


_OPEN: Final[WeakSet[Communicator]] = WeakSet()


def _close_all() -> None:
    """A process that ends without closing its groups still leaves them in good order."""
    finish_callbacks()
    for communicator in list(_OPEN):
        communicator.close()


atexit.register(_close_all)
# A forked child does not own its parent's groups: saying goodbye there would be a lie.
os.register_at_fork(after_in_child=_OPEN.clear)
