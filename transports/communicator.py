"""Collective operations that run in the background: one communication thread per group, jobs in the order given.

The thread owns the group's endpoint; nothing else touches it. Results are told to waiters and, on threads of their
own, to callbacks, which may therefore wait for further operations.
"""

import atexit
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from weakref import WeakSet

import torch

from transports.channels.base import Channel, Group, PeerStatistics, Token
from transports.collectives.base import Collective
from transports.compression.base import Compressor
from transports.errors import OptionError, TransportError
from transports.gradients import COMPRESSIBLE, GradientCompression
from transports.trace import CodecAccount, OperationTrace
from transports.transport import ReduceOperation, Transport, check, check_parts, check_root

Job = Callable[[Transport], None]
Callback = Callable[[BaseException | None], None]

NUM_CALLBACK_THREADS: Final = 32
"""A callback may wait for operations whose own callbacks must run meanwhile, so one thread is not enough."""


class Work:
    """An operation under way."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._finished = threading.Event()
        self._callbacks: list[Callback] = []
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end. Raises what went wrong with the operation, or TimeoutError if it is not over by then."""
        if not self._finished.wait(timeout_s):
            raise TimeoutError(f"the operation was not over within {timeout_s} s")
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

    def finish(self, error: BaseException | None) -> None:
        """The communication thread's side: tell everybody."""
        with self._lock:
            self._error = error
            self._finished.set()
        for callback in self._callbacks:
            self._call(callback)

    def _call(self, callback: Callback) -> bool:
        """False when there are no threads for it any more: the group is closed, or the interpreter is going."""
        try:
            self._pool.submit(callback, self._error)
        except RuntimeError:
            return False
        return True


class _Task:
    """A job in the queue."""

    def __init__(self, name: str, size_bytes: int, work: Work) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.work = work
        self.enqueued_s = time.monotonic()
        self.started_s = self.enqueued_s


class _Whole(_Task):
    """One that has the endpoint to itself while it runs."""

    def __init__(self, name: str, size_bytes: int, work: Work, job: Job, timeout_s: float) -> None:
        super().__init__(name, size_bytes, work)
        self.job = job
        self.timeout_s = timeout_s


class _Message(_Task):
    """One point-to-point message. Those next to each other in the queue are under way together: two ranks that first
    send to each other and then receive would otherwise wait for ever."""

    def __init__(
        self,
        name: str,
        size_bytes: int,
        work: Work,
        post: Callable[[Transport], tuple[Token, Callable[[], None]]],
    ) -> None:
        super().__init__(name, size_bytes, work)
        self.post = post
        self.restore: Callable[[], None]


class Communicator:
    """One member of one group. Operations work in place on the caller's tensors, which must stay as they are until
    the operation is over; every member must start the same operations in the same order."""

    def __init__(
        self,
        collective: Collective,
        channel: Channel,
        group: Group,
        on_trace: Callable[[OperationTrace], None] | None = None,
        compression: Compressor | None = None,
    ) -> None:
        """Connect to all members. `on_trace` is called on the communication thread, so it must be quick. `compression`
        changes every all_reduce, by `sum` or `avg`, of a type in `transports.gradients.COMPRESSIBLE`; what it keeps, it
        keeps for tensors of one shape, as if they were one parameter's gradients.

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
        self._tasks: deque[_Task] = deque()
        self._active: list[_Task] = []
        self._changed = threading.Condition()
        self._num_done = 0
        self._error: BaseException | None = None
        self._closing = False
        self._exchanging = False
        self._thread = threading.Thread(target=self._run, name=f"communication of {group.name}", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    @property
    def thread_id(self) -> int:
        """The kernel's id of the communication thread."""
        assert self._thread.native_id is not None, "a started thread has an id"
        return self._thread.native_id

    def statistics(self) -> dict[int, PeerStatistics]:
        """What the connection to each peer has carried."""
        return self._endpoint.statistics()

    def congestion(self) -> dict[int, str]:
        """By peer, the congestion control the kernel reports."""
        return self._endpoint.congestion()

    def reducer_statistics(self) -> dict[str, Any] | None:
        """What the switch that adds has done for this member; None without one."""
        reducer = self._transport.reducer
        return None if reducer is None else reducer.statistics()

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> Work:
        """Reduce over all ranks, in place. `avg` is the sum divided by the number of ranks."""
        check(tensor, op)
        compression = self._compression
        if compression is not None and tensor.dtype in COMPRESSIBLE and op in ("sum", "avg"):
            return self.submit(
                "all_reduce", lambda transport: compression.all_reduce(transport, tensor, op), tensor.nbytes
            )
        return self.submit("all_reduce", lambda transport: transport.all_reduce(tensor, op), tensor.nbytes)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> Work:
        """Give all ranks the root's values, in place."""
        check(tensor)
        check_root(root, self.size)
        return self.submit("broadcast", lambda transport: transport.broadcast(tensor, root), tensor.nbytes)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Work:  # noqa: A002 (torch's word)
        """Rank r's input becomes part r of everybody's output."""
        check(output)
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
        check_parts(input, output, self.size)
        return self.submit(
            "reduce_scatter", lambda transport: transport.reduce_scatter(output, input, op), input.nbytes
        )

    def reduce(self, tensor: torch.Tensor, root: int = 0, op: ReduceOperation = "sum") -> Work:
        """The root's values become the reduction over all ranks; the others' stay as they are."""
        check(tensor, op)
        check_root(root, self.size)
        return self.submit("reduce", lambda transport: transport.reduce(tensor, root, op), tensor.nbytes)

    def gather(self, output: torch.Tensor | None, input: torch.Tensor, root: int = 0) -> Work:  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others give None."""
        check(input)
        check_root(root, self.size)
        self._check_whole("output", output, input, root)
        return self.submit("gather", lambda transport: transport.gather(output, input, root), self.size * input.nbytes)

    def scatter(self, output: torch.Tensor, input: torch.Tensor | None, root: int = 0) -> Work:  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others give None."""
        check(output)
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
        own_output, own_input = outputs[self.rank].numel(), inputs[self.rank].numel()
        if own_output != own_input:
            raise OptionError(f"rank {self.rank} sends itself {own_input} elements and expects {own_output}")
        size_bytes = sum(tensor.nbytes for tensor in inputs)
        return self.submit("all_to_all", lambda transport: transport.all_to_all(outputs, inputs), size_bytes)

    def barrier(self, timeout_s: float | None = None) -> Work:
        """Over when every rank has come here, within this timeout or the group's."""
        return self.submit("barrier", lambda transport: transport.barrier(), 0, timeout_s)

    def send(self, tensor: torch.Tensor, peer: int, tag: int = 0) -> Work:
        """Send to one rank. Messages of a pair arrive in the order in which they were sent, whatever their tags."""
        self._check_peer(tensor, peer)
        return self._enqueue(
            _Message("send", tensor.nbytes, self._work(), lambda transport: transport.post_send(tensor, peer, tag))
        )

    def receive(self, tensor: torch.Tensor, peer: int, tag: int = 0) -> Work:
        """Receive from one rank; a message with another tag, length or type is a FrameMismatchError."""
        self._check_peer(tensor, peer)
        return self._enqueue(
            _Message(
                "receive",
                tensor.nbytes,
                self._work(),
                lambda transport: transport.post_receive(tensor, peer, tag),
            )
        )

    def submit(self, name: str, job: Job, size_bytes: int, timeout_s: float | None = None) -> Work:
        """Run a job of one or more phases on the communication thread, with nothing of the group's in between.

        The timeout (the group's unless one is given) counts for the whole job, from when it starts.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._enqueue(_Whole(name, size_bytes, self._work(), job, limit_s))

    def _check_whole(self, name: str, whole: torch.Tensor | None, part: torch.Tensor, root: int) -> None:
        if whole is not None and self.rank == root:
            check(whole)
            check_parts(whole, part, self.size)
        elif (whole is None) == (self.rank == root):
            raise OptionError(f"rank {root} is the root: it gives an {name}, and nobody else does")

    def _check_peer(self, tensor: torch.Tensor, peer: int) -> None:
        check(tensor)
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
                if self._exchanging:
                    self._endpoint.wake()
        if error is not None:
            task.work.finish(error)
        return task.work

    def _run(self) -> None:
        """The communication thread."""
        error: BaseException = TransportError(f"rank {self.rank} closed the group itself")
        try:
            while (task := self._take()) is not None:
                if isinstance(task, _Message):
                    self._run_messages(task)
                elif isinstance(task, _Whole):
                    self._run_whole(task)
        except BaseException as failure:  # noqa: BLE001 (it is raised where the operation is waited for)
            error = failure
        # Nothing works after an error: the ranks are out of step. Closing lets the peers notice at once.
        self._transport.close()
        with self._changed:
            self._error = error
            unfinished = [*self._active, *self._tasks]
            self._tasks.clear()
            self._active.clear()
        for task in unfinished:
            task.work.finish(error)

    def _take(self) -> _Task | None:
        """The next task, or None when the group is being closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closing)
            if self._closing:
                return None
            task = self._tasks.popleft()
            self._active.append(task)
            return task

    def _run_whole(self, task: _Whole) -> None:
        task.started_s = time.monotonic()
        self._transport.deadline_s = task.started_s + task.timeout_s
        self._transport.first_byte_s = None
        self._transport.codec = CodecAccount()
        task.job(self._transport)
        self._finish(task, self._transport.first_byte_s, self._transport.codec)

    def _run_messages(self, task: _Message) -> None:
        """Exchange a point-to-point message, and all that follow it in the queue before something else does."""
        under_way: dict[Token, _Message] = {}
        following: _Message | None = task
        while following is not None or under_way:
            if following is not None:
                following.started_s = time.monotonic()
                token, following.restore = following.post(self._transport)
                under_way[token] = following
            following = self._take_message()
            if following is None:
                oldest_s = min(message.started_s for message in under_way.values())
                for (token,) in self._endpoint.progress(oldest_s + self._timeout_s):
                    message = under_way.pop(token)
                    message.restore()
                    self._finish(message, None)
        self._exchanging = False

    def _take_message(self) -> _Message | None:
        """The next task if it is a point-to-point message; if not, whoever adds one wakes the endpoint."""
        with self._changed:
            task = self._tasks[0] if self._tasks else None
            self._exchanging = not isinstance(task, _Message)
            if not isinstance(task, _Message):
                return None
            self._tasks.popleft()
            self._active.append(task)
            return task

    def _finish(self, task: _Task, first_byte_s: float | None, codec: CodecAccount | None = None) -> None:
        done_s = time.monotonic()
        self._num_done += 1
        if self._on_trace is not None:
            self._on_trace(
                OperationTrace(
                    sequence=self._num_done,
                    operation=task.name,
                    size_bytes=task.size_bytes,
                    enqueued_s=task.enqueued_s,
                    started_s=task.started_s,
                    first_byte_s=done_s if first_byte_s is None else first_byte_s,
                    done_s=done_s,
                    payload_bytes=(codec and codec.payload_bytes) or task.size_bytes,
                    encode_s=codec.encode_s if codec else 0.0,
                    decode_s=codec.decode_s if codec else 0.0,
                )
            )
        self._active.remove(task)
        task.work.finish(None)

    def close(self) -> None:
        """Leave the group. What is still queued or under way fails; wait for it first. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            if self._active:
                self._transport.cancel()
        self._endpoint.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._pool.shutdown(wait=False)
        _OPEN.discard(self)


def _compression(compressor: Compressor | None, group: Group) -> GradientCompression | None:
    if compressor is None or compressor.kind == "none":
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
