"""Open MPI: what "MPI" means in papers. Its blocking collectives, called one after another by a thread of their own, as
Horovod calls them, so that they overlap with computing."""

import ctypes
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from transports.baselines._openmpi_launch import Job, library_path, mpirun_path
from transports.baselines.base import STACKS, CommunicatorLike, OnTrace, Stack
from transports.errors import OptionError, TransportError
from transports.execution.callbacks import CallbackThreads
from transports.execution.trace import OperationTrace
from transports.group import Group

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

    from transports.collectives.base import Collective
    from transports.execution.communicator import Work
    from transports.execution.operations import ReduceOperation

LEAVE_TIMEOUT_S: Final = 5.0
"""All ranks leave MPI together; one that waits longer for the others goes without them, and their operations fail."""
_NUM_CALLBACK_THREADS: Final = 8
_EVLOOP_ONCE: Final = 0x01  # event2/event.h
_EVLOOP_NONBLOCK: Final = 0x02
_REDUCTIONS: Final = {
    "sum": "SUM",
    "avg": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_REDUCIBLE: Final = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64")
"""What MPI's predefined operations add (MPI 4.1, section 6.9.2), of what torch has."""


Algorithm = Literal["own", "recursive_doubling", "ring", "segmented_ring", "rabenseifner"]
_ALGORITHMS: Final[Mapping[Algorithm, tuple[int, str]]] = {
    "recursive_doubling": (3, "recursive_doubling"),
    "ring": (4, "ring"),
    "segmented_ring": (5, "ring"),
    "rabenseifner": (6, "halving_doubling"),
}
"""The number that `coll_tuned_allreduce_algorithm` takes, and the collective of ours that sends the same bytes."""


@STACKS.register
class OpenMpi(Stack):
    """https://www.open-mpi.org, started by its `mpirun` and driven through mpi4py."""

    enters_namespaces: ClassVar[bool] = True
    polls: ClassVar[bool] = True

    algorithm: Algorithm = "own"
    """Of all-reduces; `own` leaves it to Open MPI's rules for the size and the number of ranks, and then nobody knows
    the bytes beforehand."""
    wait: Literal["block", "poll"] = "block"
    """For messages, as everybody else does on a machine whose cores the ranks share; `poll`: as Open MPI does where it
    finds nothing else configured, with all cores busy while a rank waits."""

    @property
    def schedule(self) -> "Collective | None":
        """That of the algorithm, if one was chosen."""
        from transports.collectives.base import COLLECTIVES

        return None if self.algorithm == "own" else COLLECTIVES.parse(_ALGORITHMS[self.algorithm][1])

    @property
    def variables(self) -> dict[str, str]:
        """What says so to the library."""
        if self.algorithm == "own":
            return {}
        return {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm": str(_ALGORITHMS[self.algorithm][0]),
        }

    def require(self) -> None:
        """Raises UnsupportedError without mpi4py or Open MPI."""
        mpirun_path()

    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Join the members into one MPI job over the groups' addresses. A process can be in one, once.

        Raises UnsupportedError without Open MPI, OptionError for a second group, PeerTimeoutError or TransportError
        when the job does not come about in time.
        """
        return OpenMpiCommunicator(self, group, on_trace)


_Job = Callable[["MPI.Intracomm"], None]


class OpenMpiCommunicator:
    """One rank of an MPI job. Implements transports.baselines.base.CommunicatorLike."""

    _taken = False

    def __init__(self, options: OpenMpi, group: Group, on_trace: OnTrace | None = None) -> None:
        if OpenMpiCommunicator._taken:
            raise OptionError("stack openmpi: MPI can be started once in a process, for one group")
        self.rank: Final = group.rank
        self.size: Final = group.size
        self._timeout_s = group.timeout_s
        self._on_trace = on_trace
        self._blocks = options.wait == "block"
        self._job = Job(group, options.variables)
        OpenMpiCommunicator._taken = True
        self._tasks: queue.SimpleQueue[tuple[str, int, float, _Job, Work] | None] = queue.SimpleQueue()
        self._pool = CallbackThreads(_NUM_CALLBACK_THREADS, f"callback of {group.name}")
        self._lock = threading.Lock()
        self._under_way: dict[int, Work] = {}
        self._numbers = itertools.count(1)
        self._error: BaseException | None = None
        self._left = threading.Event()
        ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=f"MPI of {group.name}", daemon=True)
        self._thread.start()
        try:
            error = ready.get(timeout=group.timeout_s)
        except queue.Empty:
            error = TransportError(f"MPI_Init has not returned within {group.timeout_s} s")
        if error is not None:
            self._job.end(in_order=False)
            raise error
        threading.Thread(target=self._watch, name=f"watch over {group.name}", daemon=True).start()

    @property
    def thread_id(self) -> int:
        """The kernel's id of the thread that is in MPI."""
        assert self._thread.native_id is not None, "a started thread has an id"
        return self._thread.native_id

    def all_reduce(self, tensor: "torch.Tensor", op: "ReduceOperation" = "sum") -> "Work":
        """Every member's tensor becomes the reduction of all. Raises OptionError for types that MPI does not add."""
        values, restore = _values(tensor, op)
        operation = _operation(op)

        def job(world: "MPI.Intracomm") -> None:
            from mpi4py import MPI

            world.Allreduce(MPI.IN_PLACE, values.numpy(), operation)
            self._average(values, op)
            restore()

        return self._submit("all_reduce", tensor.nbytes, job)

    def broadcast(self, tensor: "torch.Tensor", root: int) -> "Work":
        """Every member's tensor becomes the root's."""
        values, restore = _bytes(tensor)

        def job(world: "MPI.Intracomm") -> None:
            world.Bcast(values, root)
            restore()

        return self._submit("broadcast", tensor.nbytes, job)

    def all_gather(self, output: "torch.Tensor", input: "torch.Tensor") -> "Work":  # noqa: A002 - torch's word
        """`output` becomes all members' inputs, by rank."""
        received, restore = _bytes(output)
        sent, _ = _bytes(input)

        def job(world: "MPI.Intracomm") -> None:
            world.Allgather(sent, received)
            restore()

        return self._submit("all_gather", output.nbytes, job)

    def reduce_scatter(
        self,
        output: "torch.Tensor",
        input: "torch.Tensor",  # noqa: A002 - torch's word
        op: "ReduceOperation" = "sum",
    ) -> "Work":
        """`output` becomes this rank's part of the reduction of all inputs."""
        received, restore = _values(output, op)
        sent, _ = _values(input, op)
        operation = _operation(op)

        def job(world: "MPI.Intracomm") -> None:
            world.Reduce_scatter_block(sent.numpy(), received.numpy(), operation)
            self._average(received, op)
            restore()

        return self._submit("reduce_scatter", input.nbytes, job)

    def reduce(self, tensor: "torch.Tensor", root: int, op: "ReduceOperation" = "sum") -> "Work":
        """The root's tensor becomes the reduction over all members; the others' stay as they are."""
        values, restore = _values(tensor, op)
        operation, is_root = _operation(op), self.rank == root

        def job(world: "MPI.Intracomm") -> None:
            from mpi4py import MPI

            if is_root:
                world.Reduce(MPI.IN_PLACE, values.numpy(), operation, root)
                self._average(values, op)
                restore()
            else:
                world.Reduce(values.numpy(), None, operation, root)

        return self._submit("reduce", tensor.nbytes, job)

    def gather(self, output: "torch.Tensor | None", input: "torch.Tensor", root: int) -> "Work":  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others give None."""
        sent, _ = _bytes(input)
        received = None if output is None else _bytes(output)

        def job(world: "MPI.Intracomm") -> None:
            if received is None:
                world.Gather(sent, None, root)
            else:
                world.Gather(sent, received[0], root)
                received[1]()

        return self._submit("gather", self.size * input.nbytes, job)

    def scatter(self, output: "torch.Tensor", input: "torch.Tensor | None", root: int) -> "Work":  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others give None."""
        received, restore = _bytes(output)
        sent = None if input is None else _bytes(input)[0]

        def job(world: "MPI.Intracomm") -> None:
            world.Scatter(sent, received, root)
            restore()

        return self._submit("scatter", self.size * output.nbytes, job)

    def all_to_all(self, outputs: "Sequence[torch.Tensor]", inputs: "Sequence[torch.Tensor]") -> "Work":
        """inputs[p] of rank r becomes outputs[r] of rank p. MPI takes one buffer of each: the tensors are copied into
        it and out of it."""
        import torch

        sent, received = (torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in (inputs, outputs))
        width = sent.element_size()
        sent_bytes, received_bytes = ([tensor.numel() * width for tensor in tensors] for tensors in (inputs, outputs))
        out, into = _bytes(sent)[0], _bytes(received)[0]

        def job(world: "MPI.Intracomm") -> None:
            world.Alltoallv([out, sent_bytes], [into, received_bytes])
            parts = torch.split(received, [tensor.numel() for tensor in outputs])
            for output, part in zip(outputs, parts, strict=True):
                output.copy_(part.view(output.shape))

        return self._submit("all_to_all", sent.nbytes, job)

    def barrier(self) -> "Work":
        """Done when every member has called it."""
        return self._submit("barrier", 0, lambda world: world.Barrier())

    def close(self) -> None:
        """Leave the job, in good order when the others leave as well. What is under way fails. Idempotent."""
        with self._lock:
            if self._left.is_set():
                return
            self._left.set()
            idle = not self._under_way and self._error is None
        self._fail(TransportError(f"rank {self.rank} closed the group itself"))
        if idle:
            self._tasks.put(None)
            self._thread.join(LEAVE_TIMEOUT_S)
        self._job.end(in_order=not self._thread.is_alive())
        self._pool.shutdown()

    def _average(self, values: "torch.Tensor", op: "ReduceOperation") -> None:
        if op == "avg":
            if values.is_floating_point():
                values.div_(self.size)
            else:
                values.div_(self.size, rounding_mode="trunc")

    def _submit(self, name: str, size_bytes: int, job: _Job) -> "Work":
        from transports.execution.communicator import Work

        work = Work(self._pool)
        with self._lock:
            error = self._error
            if error is None:
                self._under_way[id(work)] = work
        if error is not None:
            work.finish(error)
        else:
            self._tasks.put((name, size_bytes, time.monotonic(), job, work))
        return work

    def _run(self, ready: "queue.SimpleQueue[BaseException | None]") -> None:
        """The thread that is in MPI: MPI_THREAD_FUNNELED allows no other."""
        try:
            world = _started(self._job.variables, self.rank, self.size)
            _set_blocking(self._blocks)
        except BaseException as error:  # noqa: BLE001 - it is raised where the communicator is opened
            ready.put(error)
            return
        ready.put(None)
        while (task := self._tasks.get()) is not None:
            name, size_bytes, enqueued_s, job, work = task
            with self._lock:
                if id(work) not in self._under_way:
                    continue  # it was said to have failed, and its tensors are their owner's again
            started_s = time.monotonic()
            try:
                job(world)
            except BaseException as error:  # noqa: BLE001 - it is raised where the operation is waited for
                self._fail(TransportError(f"{name} over MPI: {error}"))
                continue
            self._trace(name, size_bytes, enqueued_s, started_s)
            with self._lock:
                unfinished = self._under_way.pop(id(work), None)
            if unfinished is not None:
                unfinished.finish(None)
        _set_blocking(False)
        world.Barrier()  # MPI_Finalize waits for the others as well, but nothing of Python runs meanwhile
        _finalize()

    def _watch(self) -> None:
        """A rank that is lost makes mpirun end the job; nobody else would end an MPI call that waits for it."""
        said = self._job.wait_lost()
        if not self._left.is_set():
            self._fail(TransportError(f"a rank is lost, and mpirun has ended the job:\n{said}"))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            works = list(self._under_way.values())
            self._under_way.clear()
        for work in works:
            work.finish(error)

    def _trace(self, name: str, size_bytes: int, enqueued_s: float, started_s: float) -> None:
        if self._on_trace is not None:
            # MPI does not say when the first byte comes.
            self._on_trace(
                OperationTrace.from_outside(
                    next(self._numbers), name, size_bytes, enqueued_s=enqueued_s, started_s=started_s
                )
            )


def _set_blocking(blocks: bool) -> None:
    """Whether whoever waits for a message sleeps until a socket is ready (EVLOOP_ONCE of libevent) or looks again and
    again (with EVLOOP_NONBLOCK, what the library begins with). To be off while MPI starts and ends: what it then waits
    for comes through no socket of its event loop."""
    ctypes.CDLL(str(library_path("libopen-pal.so"))).opal_progress_set_event_flag(
        _EVLOOP_ONCE if blocks else _EVLOOP_ONCE | _EVLOOP_NONBLOCK
    )


def _started(variables: Mapping[str, str], rank: int, size: int) -> "MPI.Intracomm":
    """MPI in this process, as the rank that the variables say."""
    os.environ.update(variables)
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    MPI.Init_thread(MPI.THREAD_FUNNELED)
    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)
    if (world.Get_rank(), world.Get_size()) != (rank, size):
        raise TransportError(f"MPI took rank {rank} of {size} for rank {world.Get_rank()} of {world.Get_size()}")
    return world


def _finalize() -> None:
    from mpi4py import MPI

    MPI.Finalize()


def _operation(op: "ReduceOperation") -> "MPI.Op":
    from mpi4py import MPI

    operation: MPI.Op = getattr(MPI, _REDUCTIONS[op])
    return operation


def _values(tensor: "torch.Tensor", op: "ReduceOperation") -> "tuple[torch.Tensor, Callable[[], None]]":
    """The tensor's values in one piece, and what puts them back where they are a copy. Raises OptionError."""
    from transports.execution.operations import check

    check(tensor, op)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _REDUCIBLE:
        raise OptionError(f"MPI does not reduce {name}; allowed: {', '.join(_REDUCIBLE)}")
    return _in_one_piece(tensor)


def _bytes(tensor: "torch.Tensor") -> "tuple[memoryview, Callable[[], None]]":
    """The same as bytes, for operations that only move them."""
    import torch

    from transports.execution.operations import check

    check(tensor)
    values, restore = _in_one_piece(tensor)
    return memoryview(values.view(-1).view(torch.uint8).numpy().data), restore


def _in_one_piece(tensor: "torch.Tensor") -> "tuple[torch.Tensor, Callable[[], None]]":
    if tensor.is_contiguous():
        return tensor.detach(), lambda: None
    values = tensor.detach().contiguous()

    def restore() -> None:
        tensor.detach().copy_(values)

    return values, restore
