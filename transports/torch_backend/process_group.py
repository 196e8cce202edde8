# ruff: noqa: ARG002 - torch hands over its options whether they say anything or not
# mypy: disable-error-code="override, assignment"
# (torch's stubs declare overloads whose second forms nobody calls, and camel-case argument names)
"""The `torch.distributed` backend `testbed`: a thin adapter from torch's process group to a Communicator.

Every byte goes through a collective's schedule over a channel; there is no other backend inside. What to use
is decided before `init_process_group("testbed")`, in a program by :func:`configure`, otherwise from the
environment:

    TESTBED_COLLECTIVE   `ring`, or JSON: `{"kind": "ring", "segment_bytes": "64KiB"}`   default: ring
    TESTBED_CHANNEL      `tcp`, or JSON                                                  default: tcp
    TESTBED_COMPRESSION  `fp16`, or JSON: `{"kind": "qsgd", "bits": 8}`                  default: none
    TESTBED_RACKS        the number of each rank's rack: `0,0,1,1`                       default: all in one
    TESTBED_ADDRESS      this host's own address to listen on
    TESTBED_INTERFACE    or the interface whose IPv4 address to listen on

With neither address nor interface it is the address of the interface that routes to MASTER_ADDR, and
127.0.0.1 when there is no MASTER_ADDR. On a host whose own name resolves to 127.0.1.1 (Debian's /etc/hosts)
name one of them.

Compression in the group changes every all_reduce, by SUM or AVG, of float32, float16 and bfloat16 tensors, whatever
they hold: the result is the sum, or the mean, of what each rank's tensor decodes to. float64, sparse tensors and
everything else stay exact. Compressors that keep something of each parameter (error feedback, PowerSGD, DGC), and those
whose result depends on the unit of the gradients (a vote of signs, a threshold), which DistributedDataParallel changes
before the group sees them, attach to a model instead: `transports.torch_backend.ddp_hook.register`.

Supported: all_reduce, broadcast, all_gather, reduce_scatter (each also coalesced and on single tensors),
reduce, gather, scatter, all_to_all, barrier, monitored_barrier, send, recv (also from any source), subgroups, on CPU
tensors; all_reduce of sparse tensors by SUM and AVG; reductions SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR,
PREMUL_SUM. Collectives must be started in the same order by all members. Sends and receives are matched by rank and
tag, in any order, whatever collectives are under way; as with gloo a send may wait for its receive to be posted, and a
message may be shorter than the tensor that receives it.

Mistakes in arguments are raised by the call and harm nothing. Errors of the transport surface where torch waits for the
operation: in `wait()`, in its future, or in `backward()`. After one of a collective the group can only be shut down;
one of a send or receive concerns the two ranks alone.

Works with torch 2.13. The methods' names, arguments and results are those that torch's C++ trampoline
(PyProcessGroup.hpp) and `distributed_c10d.py` call.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.futures import Future

from transports.baselines.base import CommunicatorLike, OnTrace, Stack, WorkLike
from transports.channels.base import CHANNELS, Channel
from transports.collectives.base import COLLECTIVES, Collective
from transports.compression.base import COMPRESSORS, Compressor, require_for_group
from transports.errors import OptionError
from transports.execution import sparse
from transports.execution.communicator import Communicator
from transports.execution.operations import ReduceOperation, Transport, check, check_parts, check_written
from transports.group import Group, Store
from transports.torch_backend.autoload import BACKEND
from transports.torch_backend.environment import (
    own_address,
    parsed_axis,
    rack_numbers,
    require_known,
    require_rack_each,
)
from transports.torch_backend.monitored_barrier import MonitoredBarrier
from transports.torch_backend.profiling import profiled
from transports.torch_backend.works import Operation, Receipt

_REDUCE_OPERATIONS: Final[Sequence[tuple[Any, ReduceOperation]]] = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
    (dist.ReduceOp.PREMUL_SUM, "sum"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessGroupOptions:
    """How the groups of this process exchange tensors."""

    collective: Collective
    channel: Channel
    address: str
    """This host's own address to listen on."""
    compression: Compressor = field(default_factory=lambda: COMPRESSORS.parse("none"))
    """Of all_reduces; one that :func:`require_for_group` allows."""
    racks: tuple[int, ...] = ()
    """For each rank of the default group, the number of its rack; empty: all in one."""
    servers_meet: tuple[str, Store] | None = None
    """Under which name, and in which store, the collective's dedicated servers meet the default group."""
    stack: Stack | None = None
    """A baseline library that does it all instead; groups over one cannot do what CommunicatorLike does not offer."""
    on_trace: OnTrace | None = None
    """Called for every finished operation of every group, on its communication thread or on that of whoever waits."""

    @classmethod
    def from_environment(cls) -> "ProcessGroupOptions":
        """From the variables in this module's docstring. Raises OptionError."""
        require_known(os.environ)
        return cls(
            collective=parsed_axis(COLLECTIVES, os.environ, "TESTBED_COLLECTIVE", "ring"),
            channel=parsed_axis(CHANNELS, os.environ, "TESTBED_CHANNEL", "tcp"),
            address=own_address(os.environ),
            compression=parsed_axis(COMPRESSORS, os.environ, "TESTBED_COMPRESSION", "none"),
            racks=rack_numbers(os.environ),
        )


_configured: ProcessGroupOptions | None = None


def configure(options: ProcessGroupOptions | None) -> None:
    """Set the options of groups that this process creates from now on; None: from the environment again."""
    global _configured  # noqa: PLW0603 - torch creates groups by name and hands nothing of ours through
    _configured = options


def create(backend_options: Any, _: object) -> "TestbedProcessGroup":
    """What torch calls for init_process_group and new_group (`register_backend(..., extended_api=True)`)."""
    options = _configured if _configured is not None else ProcessGroupOptions.from_environment()
    require_for_group(options.compression)
    # torch has prefixed it with the group's name, so subgroups do not meet each other.
    name, store = backend_options.group_id, backend_options.store
    # How often this member has made a group of that name over that store, where addresses of the one before still are:
    # the n-th of each meets the n-th of the others.
    number = store.add(f"groups/{backend_options.group_rank}", 1)
    if number > 1:
        name = f"{name}/{number}"
    if options.collective.num_servers:
        name, store = _servers_meet(options)
    group = Group(
        name=name,
        rank=backend_options.group_rank,
        size=backend_options.group_size,
        address=options.address,
        store=store,
        timeout_s=backend_options.timeout.total_seconds(),
        racks=_racks(options.racks, backend_options),
    )
    # In torch's own store: the one that servers meet in knows other members.
    monitored = MonitoredBarrier(backend_options.store, group.rank, group.size, group.timeout_s, number=number)
    if options.stack is not None:
        return TestbedProcessGroup(options.stack.open(group, options.on_trace), monitored)
    collective = options.collective.of_further_group() if dist.is_initialized() else options.collective
    communicator = Communicator(collective, options.channel, group, options.on_trace, options.compression)
    return TestbedProcessGroup(communicator, monitored)


def _servers_meet(options: ProcessGroupOptions) -> tuple[str, Store]:
    """Raises OptionError where there are no servers to meet."""
    allowed = "allowed here: `placement: co_located`"
    if options.servers_meet is None:
        raise OptionError(f"dedicated servers are processes of their own, which `testbed run` starts; {allowed}")
    if dist.is_initialized():
        raise OptionError(f"dedicated servers serve the default group and no other; {allowed}")
    return options.servers_meet


def _racks(racks: tuple[int, ...], backend_options: Any) -> tuple[int, ...]:
    """Those of a group's members. Raises OptionError where there are not as many as ranks."""
    num_ranks = dist.get_world_size() if dist.is_initialized() else backend_options.group_size
    require_rack_each(racks, num_ranks)
    members = backend_options.global_ranks_in_group or range(backend_options.group_size)
    return tuple(racks[member] for member in members) if racks else ()


@profiled
class TestbedProcessGroup(dist.ProcessGroup):
    """One process group of torch over one communicator: ours, or a baseline library's with our communicator's face."""

    __test__ = False  # the name begins like a test class; pytest must not collect it

    def __init__(self, communicator: CommunicatorLike, monitored: MonitoredBarrier) -> None:
        # The constructor that takes a store cannot be subclassed in torch 2.13.
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]
        self.communicator: Final = communicator
        self._monitored: Final = monitored
        self._name = ""
        self._description = ""
        self._closed = False

    # Identity. torch's C++ and Python sides ask by different names; without a backend inside, the inherited
    # ones have nothing to answer from.

    def rank(self) -> int:
        """This member's rank in the group."""
        return self.communicator.rank

    def size(self) -> int:
        """The number of members."""
        return self.communicator.size

    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    getRank = rank  # noqa: N815 - torch's names, here and below
    getSize = size  # noqa: N815
    getBackendName = name  # noqa: N815

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """The group's name in this process."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the group is for."""
        return self._description

    setGroupName = _set_group_name  # noqa: N815
    setGroupDesc = _set_group_desc  # noqa: N815
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    # What torch asks of a group's backend for a type of device: the group is its own, for tensors on the CPU.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> "TestbedProcessGroup":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}: {BACKEND} is for cpu")
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether it has memory of its own to give away."""
        return False

    # Collectives.

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Each tensor becomes the reduction of all members'; sparse ones by SUM or AVG."""
        operation = _reduce_operation(opts)
        multiplies = _factor(opts) is not None
        if multiplies or len(tensors) > 1:
            self._require_written(tensors, operation)
        if multiplies:
            for tensor in tensors:
                _premultiply(tensor, opts)
        works = [self._all_reduce(tensor, operation) for tensor in tensors]
        return Operation(works, tensors, is_waited_for=_is_waited_for(opts))

    def _require_written(self, tensors: Sequence[torch.Tensor], operation: ReduceOperation = "sum") -> None:
        """Open the group, and look at all tensors, before any is changed: whoever tries again would multiply, or add,
        twice. Raises what the operation would."""
        members = self._open
        for tensor in tensors:
            if tensor.is_sparse:
                sparse.check_sparse(tensor, operation)
            elif isinstance(members, Communicator):
                check(tensor, operation)
                check_written(tensor)

    def _require_parts(
        self,
        wholes: Sequence[torch.Tensor],
        its_parts: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        operation: ReduceOperation = "sum",
    ) -> None:
        """The same of pairs of a whole and a part, of which one side is written; of one pair its own operation sees to
        that. Raises ValueError unless there are as many of each."""
        if len(wholes) == len(its_parts) == 1:
            return
        self._require_written(written, operation)
        members = self._open
        for whole, part in zip(wholes, its_parts, strict=True):
            if isinstance(members, Communicator):
                check(whole)
                check(part)
                check_parts(whole, part, self.size())

    def _all_reduce(self, tensor: torch.Tensor, operation: ReduceOperation) -> WorkLike:
        if not tensor.is_sparse:
            return self._open.all_reduce(tensor, operation)
        sparse.check_sparse(tensor, operation)
        return self.ours.submit(
            "all_reduce", lambda transport: sparse.all_reduce(transport, tensor, operation), sparse.size_bytes(tensor)
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """The root's tensors become the reduction of all members'; the others' stay as they are."""
        operation = _reduce_operation(opts)
        if _factor(opts) is not None:
            is_root = self.rank() == opts.rootRank
            if is_root:
                self._require_written(tensors, operation)
            tensors = [_premultiply(tensor if is_root else tensor.clone(), opts) for tensor in tensors]
        return Operation([self._open.reduce(tensor, opts.rootRank, operation) for tensor in tensors], tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Each tensor becomes the root's."""
        if len(tensors) > 1:
            self._require_written(tensors)
        works = [self._open.broadcast(tensor, opts.rootRank) for tensor in tensors]
        return Operation(works, tensors, is_waited_for=_is_waited_for(opts))

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Each output becomes all members' inputs, by rank."""
        self._require_parts(outputs, inputs, outputs)
        pairs = zip(outputs, inputs, strict=True)
        return Operation([self._open.all_gather(output, part) for output, part in pairs], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:  # noqa: A002
        """The output becomes all members' inputs, by rank."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """outputs[i][r] becomes member r's inputs[i]; where shapes differ from member to member, everybody sends its
        own to everybody. Raises ValueError unless a member's own output is like its input."""
        works: list[WorkLike] = []
        gathered: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        for parts, part in zip(outputs, inputs, strict=True):
            self._require_own(parts, part)
            self._require_written(parts)
        for parts, part in zip(outputs, inputs, strict=True):
            if _alike(parts):
                flat = part.new_empty((self.size(), *part.shape))
                works.append(self._open.all_gather(flat, part))
                gathered.append((parts, flat))
            else:
                works.append(self._open.all_to_all(parts, [part] * self.size()))

        def scatter_locally() -> None:
            for parts, flat in gathered:
                for part, row in zip(parts, flat, strict=True):
                    part.copy_(row)

        return Operation(works, outputs, scatter_locally)

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """output_lists[r][i] becomes member r's inputs[i]."""
        return self.allgather([list(parts) for parts in zip(*output_lists, strict=True)], inputs, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Each output becomes this member's part of the reduction of all members' inputs."""
        operation = _reduce_operation(opts)
        self._require_parts(inputs, outputs, outputs, operation)
        if _factor(opts) is not None:
            inputs = [_premultiply(whole.clone(), opts) for whole in inputs]
        pairs = zip(outputs, inputs, strict=True)
        return Operation([self._open.reduce_scatter(output, whole, operation) for output, whole in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:  # noqa: A002
        """The output becomes this member's part of the reduction of all members' inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> dist.Work:
        """outputs[i] becomes the reduction of all members' inputs[i][this rank]; where shapes differ from member to
        member, each member's part is reduced by itself. Raises ValueError unless a member's own input is like its
        output."""
        for output, parts in zip(outputs, inputs, strict=True):
            self._require_own(parts, output)
        if all(map(_alike, inputs)):
            return self.reduce_scatter_single_coalesced(outputs, [torch.stack(parts) for parts in inputs], opts)
        operation = _reduce_operation(opts)
        self._require_written(outputs, operation)
        copies = [[_premultiply(part.clone(), opts) for part in parts] for parts in inputs]
        works = [self._open.reduce(part, root, operation) for parts in copies for root, part in enumerate(parts)]

        def keep_own() -> None:
            for output, parts in zip(outputs, copies, strict=True):
                output.copy_(parts[self.rank()])

        return Operation(works, outputs, keep_own)

    def _require_own(self, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        if len(parts) != self.size():
            raise ValueError(f"{len(parts)} tensors for {self.size()} members")
        part = parts[self.rank()]
        if part.shape != own.shape or any(each.dtype != own.dtype for each in parts):
            raise ValueError(
                f"this rank's tensor is {tuple(own.shape)} of {own.dtype}, and the list's for it {tuple(part.shape)}, "
                f"of {', '.join(sorted({str(each.dtype) for each in parts}))}"
            )

    def barrier(self, opts: Any = None) -> dist.Work:
        """Done when every member has called it, within the timeout of the options if they have one: of all
        operations it is the only one that torch.distributed lets its callers give one."""
        given = opts is not None and opts.timeout > timedelta(0)  # torch's "unset" is negative
        timeout_s = opts.timeout.total_seconds() if given else None
        work = self._open.barrier() if timeout_s is None else self.ours.barrier(timeout_s)
        return Operation([work], [torch.empty(0)], is_waited_for=_is_waited_for(opts))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return when every member has called it, within the timeout or the group's; it waits for nothing else that is
        under way. Raises RuntimeError that names the ranks that have not: the first of them, or all.

        To be called on the group, `dist.group.WORLD.monitored_barrier(timedelta(seconds=30))`:
        `torch.distributed.monitored_barrier` refuses every backend that is not called gloo."""
        self._monitored.wait(None if timeout is None else timeout.total_seconds(), wait_all_ranks=wait_all_ranks)

    # Point to point, and what is made of it.

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        """Send to one member, whose receive has the same tag."""
        return Operation([self.ours.send(tensor, peer, tag) for tensor in tensors], tensors)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        """Receive from one member what it sends with that tag, which may be less than fills the tensor."""
        (tensor,) = tensors
        return Receipt(self.ours.receive(tensor, peer, tag), tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        """Receive from whichever member sends with that tag first; `_source_rank()` of the work says which."""
        (tensor,) = tensors
        return Receipt(self.ours.receive(tensor, None, tag), tensors)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> dist.Work:
        """On the root outputs[0][r] becomes member r's inputs[0]; the others give an empty list."""
        (source,) = inputs
        if self.rank() != opts.rootRank:
            return Operation([self.ours.gather(None, source, opts.rootRank)], outputs)
        (parts,) = outputs
        _require_alike(parts, source, self.size())
        gathered = source.new_empty((self.size(), *source.shape))

        def hand_out() -> None:
            for part, row in zip(parts, gathered, strict=True):
                part.copy_(row)

        return Operation([self.ours.gather(gathered, source, opts.rootRank)], outputs, hand_out)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> dist.Work:
        """Every outputs[0] becomes the root's inputs[0][this rank]; the others give an empty list."""
        (target,) = outputs
        whole = None
        if self.rank() == opts.rootRank:
            (parts,) = inputs
            _require_alike(parts, target, self.size())
            whole = torch.stack(parts)
        return Operation([self.ours.scatter(target, whole, opts.rootRank)], outputs)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """outputs[r] becomes member r's inputs[this rank]; sizes may differ from pair to pair."""
        return Operation([self._open.all_to_all(outputs, inputs)], outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        """The parts of `output` along its first dimension become the members' parts for this rank; without
        splits all parts are equal."""
        received, sent = self._split(output, output_splits), self._split(input, input_splits)
        return self.alltoall(received, sent, opts)

    alltoall_base = all_to_all_single

    def _split(self, tensor: torch.Tensor, splits: list[int]) -> list[torch.Tensor]:
        num_rows, size = tensor.shape[0], self.size()
        if not splits and num_rows % size != 0:
            raise ValueError(f"{num_rows} rows cannot be dealt out evenly to {size} members")
        return list(torch.split(tensor, splits or [num_rows // size] * size))  # of no rows, too, a part for each

    # The end.

    def shutdown(self) -> None:
        """Leave the group; what is pending fails, here and at the others. Idempotent."""
        self._closed = True
        self.communicator.close()

    abort = shutdown

    def submit(self, name: str, job: Callable[[Transport], None], buffer: torch.Tensor) -> "Future[torch.Tensor]":
        """Run a job of several phases in one piece on the communication thread, for a DistributedDataParallel
        hook: the future completes with `buffer`, which the job has changed in place. See
        Communicator.submit."""
        work = self.ours.submit(name, job, buffer.numel() * buffer.element_size())
        return Operation([work], buffer).get_future()

    @property
    def _open(self) -> CommunicatorLike:
        """The communicator, to start an operation on. Raises DistBackendError after shutdown()."""
        if self._closed:
            raise dist.DistBackendError(f"the process group {self._name!r} was shut down")
        return self.communicator

    @property
    def ours(self) -> Communicator:
        """The same where only ours will do. Raises OptionError over a baseline library."""
        communicator = self._open
        if not isinstance(communicator, Communicator):
            raise OptionError(
                "point-to-point messages, gather, scatter, sparse sums, barriers with a timeout and compression need "
                "a collective over a channel instead of a baseline library"
            )
        return communicator


def _reduce_operation(opts: Any) -> ReduceOperation:
    """Our word for torch's operation. Raises ValueError for those that cannot be had."""
    if opts is None:
        return "sum"
    wanted = opts.reduceOp  # an object of its own each time
    for operation, name in _REDUCE_OPERATIONS:
        if wanted == operation:
            return name
    allowed = ", ".join(name.upper() for _, name in _REDUCE_OPERATIONS)
    raise ValueError(f"{BACKEND} cannot reduce with {wanted.op.name}; allowed: {allowed}")


def _is_waited_for(opts: Any) -> bool:
    """Whether torch.distributed waits for the operation at once. C++, which says nothing, does not."""
    return not getattr(opts, "asyncOp", True)


def _factor(opts: Any) -> Any:
    """What PREMUL_SUM multiplies with; None for every other reduction. torch tells it only to pickle."""
    if opts is None or opts.reduceOp != dist.ReduceOp.PREMUL_SUM:
        return None
    return opts.reduceOp.__getstate__()[1]


def _premultiply(tensor: torch.Tensor, opts: Any) -> torch.Tensor:
    """In place, if the reduction asks for it."""
    factor = _factor(opts)
    return tensor if factor is None else tensor.mul_(factor)


def _alike(parts: Sequence[torch.Tensor]) -> bool:
    return all(part.shape == parts[0].shape for part in parts)


def _require_alike(parts: Sequence[torch.Tensor], own: torch.Tensor, size: int) -> None:
    if len(parts) != size:
        raise ValueError(f"{len(parts)} tensors for {size} members")
    for peer, part in enumerate(parts):
        if part.shape != own.shape or part.dtype != own.dtype:
            raise ValueError(
                f"the tensor for rank {peer} is {tuple(part.shape)} of {part.dtype}, this rank's is "
                f"{tuple(own.shape)} of {own.dtype}: {BACKEND} exchanges equal parts"
            )
