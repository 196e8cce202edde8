"""Every operation of the backend as an event of torch's profiler, as gloo's and NCCL's are.

Two events each, because what can be had from Python differs:

    testbed:all_reduce     From the call to the completion, whichever thread completes it: the counterpart of
                           `gloo:all_reduce`, with the tensors' shapes and types.
    testbed.param_comms    At its beginning, in the same thread, with the arguments that trace tools read in NCCL's
                           `record_param_comms`: Collective name, dtype, In msg nelems, Process Group Name, ...

torch 2.13 keeps an event's arguments only with `record_shapes=True`. It cannot be called `record_param_comms`: torch
then looks for arguments where only C++ can put them, and crashes without.

Without a profiler an operation pays one look at a variable.
"""

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.futures import Future

from transports.torch_backend.autoload import BACKEND

PARAMETERS: Final = f"{BACKEND}.param_comms"


class _Profiled(NamedTuple):
    """How a method of a process group appears."""

    title: str
    """After `testbed:`. gloo's words."""
    collective: str
    """NCCL's word for it, in `Collective name`."""
    inputs: int | None = 0
    """The number of the argument that holds what is read."""
    outputs: int | None = 0
    """And of the one that holds what is written."""
    root: str | None = None
    """The option that holds the root."""
    peer: str | None = None
    """What the second argument is, in a message from one rank to another."""


METHODS: Final[Mapping[str, _Profiled]] = {
    "allreduce": _Profiled("all_reduce", "allreduce"),
    "allreduce_coalesced": _Profiled("all_reduce", "allreduce_coalesced"),
    "reduce": _Profiled("reduce", "reduce", root="rootRank"),
    "broadcast": _Profiled("broadcast", "broadcast", root="rootRank"),
    "allgather": _Profiled("all_gather", "all_gather", 1),
    "allgather_coalesced": _Profiled("all_gather", "all_gather_coalesced", 1),
    "all_gather_single": _Profiled("all_gather", "_allgather_base", 1),
    "_allgather_base": _Profiled("all_gather", "_allgather_base", 1),
    "all_gather_single_coalesced": _Profiled("all_gather", "allgather_into_tensor_coalesced", 1),
    "allgather_into_tensor_coalesced": _Profiled("all_gather", "allgather_into_tensor_coalesced", 1),
    "reduce_scatter": _Profiled("reduce_scatter", "reduce_scatter", 1),
    "reduce_scatter_single": _Profiled("reduce_scatter", "_reduce_scatter_base", 1),
    "_reduce_scatter_base": _Profiled("reduce_scatter", "_reduce_scatter_base", 1),
    "reduce_scatter_single_coalesced": _Profiled("reduce_scatter", "reduce_scatter_tensor_coalesced", 1),
    "reduce_scatter_tensor_coalesced": _Profiled("reduce_scatter", "reduce_scatter_tensor_coalesced", 1),
    "gather": _Profiled("gather", "gather", 1, root="rootRank"),
    "scatter": _Profiled("scatter", "scatter", 1, root="rootRank"),
    "alltoall": _Profiled("all_to_all", "all_to_all", 1),
    "all_to_all_single": _Profiled("all_to_all", "all_to_allv", 1),
    "alltoall_base": _Profiled("all_to_all", "all_to_allv", 1),
    "barrier": _Profiled("barrier", "barrier", None, None),
    "send": _Profiled("send", "send", outputs=None, peer="Dst Rank"),
    "recv": _Profiled("recv", "recv", inputs=None, peer="Src Rank"),
    "recv_anysource": _Profiled("recvAnySource", "recv", inputs=None),
    # What a gradient hook makes of a bucket: whatever its phases are, together they are an all_reduce.
    "submit": _Profiled("all_reduce", "allreduce", 2, 2),
}
"""By the method's name, with all the names under which torch calls it."""


class _Thread(threading.local):
    """One method may be made of another; an operation is one event."""

    records = False


_thread: Final = _Thread()
_Group = TypeVar("_Group", bound=type[dist.ProcessGroup])


def profiled(group: _Group) -> _Group:
    """A class decorator: the operations of a process group appear in torch's profiler."""
    for name, described in METHODS.items():
        setattr(group, name, _recorded(vars(group)[name], described))
    return group


def record(group: dist.ProcessGroup, described: _Profiled, arguments: Sequence[Any], start: Callable[[], Any]) -> Any:
    """Start an operation, whose work or future it returns; its event ends when that is done."""
    inputs, outputs = _tensors(arguments, described.inputs), _tensors(arguments, described.outputs)
    event = torch.autograd._record_function_with_args_enter(  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
        f"{BACKEND}:{described.title}", *(outputs if described.inputs is None else inputs)
    )
    with torch._C._profiler._RecordFunctionFast(  # noqa: SLF001 - the one that takes arguments by name
        PARAMETERS, inputs, _parameters(group, described, arguments, inputs, outputs)
    ):
        pass
    try:
        started = start()
    except BaseException:
        torch.autograd._record_function_with_args_exit(event)  # type: ignore[attr-defined]  # noqa: SLF001
        raise
    _end_with(started.get_future() if isinstance(started, dist.Work) else started, event)
    return started


class _OpenEvents:
    """Those of operations under way, each as a future that ends it.

    When a profiler stops, torch frees its events; an operation that completes after that would write into freed memory
    (with gloo it does, and the process crashes). So whatever is open then is ended just before, and what is just ending
    is waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: set[Future[None]] = set()
        self._watches = False

    def add(self, event: Any) -> "Future[None]":
        """The future that ends an event."""
        ended: Future[None] = Future()
        # Unlike Future.then() in Python it takes the profiler along, from this thread to the one that ends the event.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, ended)  # noqa: SLF001
        with self._lock:
            self._futures.add(ended)
            if not self._watches:
                self._watches = True
                profiler._disable_profiler = self._ended_before(profiler._disable_profiler)  # type: ignore[attr-defined]  # noqa: SLF001
        return ended

    def end(self, ended: "Future[None]") -> None:
        """Unless it has been ended."""
        with self._lock:  # held to the end: no profiler may stop meanwhile
            if ended in self._futures:
                self._futures.remove(ended)
                ended.set_result(None)

    def _ended_before(self, disable: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(disable)
        def disable_profiler() -> Any:
            while True:
                for ended in list(self._futures):
                    _elsewhere(functools.partial(self.end, ended))
                # One that is no longer among them may be ending at this moment, in the thread that completed it.
                with self._lock:
                    if not self._futures:
                        return disable()

        return disable_profiler


_open_events: Final = _OpenEvents()


def _end_with(future: "Future[Any]", event: Any) -> None:
    """End the event when the future is complete."""
    ended = _open_events.add(event)
    beginner = threading.get_ident()

    def end(_: object) -> None:
        if threading.get_ident() == beginner:  # the operation was faster than we
            _elsewhere(functools.partial(_open_events.end, ended))
        else:
            _open_events.end(ended)

    future.add_done_callback(end)


def _elsewhere(action: Callable[[], None]) -> None:
    """In a thread of its own: an event that ends where it began is taken for a synchronous one, inside which whatever
    happened meanwhile in that thread must lie."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def _recorded(method: Callable[..., Any], described: _Profiled) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not profiler._is_profiler_enabled or _thread.records:  # noqa: SLF001 - what torch itself asks
            return method(self, *arguments, **named)
        _thread.records = True
        try:
            given = signature.bind(self, *arguments, **named)
            given.apply_defaults()
            return record(self, described, given.args[1:], lambda: method(self, *arguments, **named))
        finally:
            _thread.records = False

    return call


def _tensors(arguments: Sequence[Any], number: int | None) -> list[torch.Tensor]:
    return [] if number is None else list(_flat(arguments[number]))


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for each in value:
            yield from _flat(each)


def _parameters(
    group: dist.ProcessGroup,
    described: _Profiled,
    arguments: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> dict[str, Any]:
    """What kineto writes for NCCL (torch/csrc/profiler/util.h), under the same names and in the same forms; and of a
    message its tag, which NCCL has not."""
    ranks = dist.get_process_group_ranks(group)
    strides = {after - before for before, after in itertools.pairwise(ranks)}
    sample = next(iter((*inputs, *outputs)), None)
    options = arguments[-1]  # of a message its tag
    found: dict[str, Any] = {
        "Collective name": described.collective,
        "dtype": "" if sample is None else sample.type().rpartition(".")[2].removesuffix("Tensor"),
        "In msg nelems": sum(tensor.numel() for tensor in inputs),
        "Out msg nelems": sum(tensor.numel() for tensor in outputs),
        "Group size": group.size(),
        "Rank": group.rank(),
        "Global rank start": ranks[0],
        "Global rank stride": strides.pop() if len(strides) == 1 else 0,
        "Process Group Name": group.group_name,
        "Process Group Description": group.group_desc,
        "Process Group Ranks": str(ranks),
        "In split size": "[]",
        "Out split size": "[]",
        "Is asynchronized op": bool(getattr(options, "asyncOp", True)),
    }
    if described.collective == "all_to_allv":
        found |= {"In split size": str(list(arguments[3])), "Out split size": str(list(arguments[2]))}
    if described.root is not None:
        found["Root Rank"] = ranks[getattr(options, described.root)]
    if described.peer is not None:
        found |= {described.peer: ranks[arguments[1]], "Tag": arguments[2]}
    return found
