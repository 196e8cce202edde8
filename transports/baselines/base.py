"""Baseline libraries: collective and transport in one, as others have written them. They are what ours is compared
with."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from transports.execution.trace import OperationTrace
from transports.group import Group
from transports.registry import Options, Registry

if TYPE_CHECKING:
    import torch

    from transports.collectives.base import Collective
    from transports.execution.operations import ReduceOperation

OnTrace = Callable[[OperationTrace], None]


class WorkLike(Protocol):
    """An operation under way."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is done. Raises the operation's error."""

    def proceed(self, *, waiting: bool) -> None:
        """What whoever has started it does next: wait for it at once, then it may be carried out here and now, on the
        caller's thread; or something else meanwhile."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def add_done_callback(self, callback: Callable[[BaseException | None], None], /) -> None:
        """Call with the operation's error, or None, when it has ended."""

    def add_end_callback(self, callback: Callable[[BaseException | None], None], /) -> None:
        """The same at once, on the thread that has ended it: the callback must be quick, and must not wait."""


class CommunicatorLike(Protocol):
    """One member's side of a group: what a benchmark drives, whichever stack is underneath. Tensors are
    worked on in place and must not be touched until the work is done."""

    @property
    def rank(self) -> int:
        """Of this member."""

    @property
    def size(self) -> int:
        """The number of members."""

    @property
    def thread_id(self) -> int | None:
        """The kernel's id of the thread that does its work; None where that is done by threads of a library's own."""

    def all_reduce(self, tensor: "torch.Tensor", op: "ReduceOperation" = "sum") -> WorkLike:
        """Every member's tensor becomes the reduction of all."""

    def broadcast(self, tensor: "torch.Tensor", root: int) -> WorkLike:
        """Every member's tensor becomes the root's."""

    def all_gather(self, output: "torch.Tensor", input: "torch.Tensor") -> WorkLike:  # noqa: A002 - torch's word
        """`output` becomes all members' inputs, by rank."""

    def reduce_scatter(
        self,
        output: "torch.Tensor",
        input: "torch.Tensor",  # noqa: A002 - torch's word
        op: "ReduceOperation" = "sum",
    ) -> WorkLike:
        """`output` becomes this rank's part of the reduction of all inputs."""

    def reduce(self, tensor: "torch.Tensor", root: int, op: "ReduceOperation" = "sum") -> WorkLike:
        """The root's tensor becomes the reduction over all members; what the others' become is the stack's affair."""

    def gather(self, output: "torch.Tensor | None", input: "torch.Tensor", root: int) -> WorkLike:  # noqa: A002
        """Rank r's input becomes part r of the root's output; the others give None."""

    def scatter(self, output: "torch.Tensor", input: "torch.Tensor | None", root: int) -> WorkLike:  # noqa: A002
        """Part r of the root's input becomes rank r's output; the others give None."""

    def all_to_all(self, outputs: "Sequence[torch.Tensor]", inputs: "Sequence[torch.Tensor]") -> WorkLike:
        """inputs[p] of rank r becomes outputs[r] of rank p."""

    def barrier(self) -> WorkLike:
        """Done when every member has called it."""

    def close(self) -> None:
        """Leave the group; the others notice. Idempotent."""


class Stack(Options):
    """A value on the stack axis."""

    torch_backend: ClassVar[str | None] = None
    """The name by which torch.distributed has it already, and DistributedDataParallel is given it; None: it takes the
    place of our own transports below our backend."""
    enters_namespaces: ClassVar[bool] = False
    """Whether one member reaches into the others' namespaces to start."""
    polls: ClassVar[bool] = False
    """Whether its threads look for messages all the time: before everybody else they would leave no core to anybody."""
    more_message_bytes: ClassVar[int] = 0
    """Wire bytes that may come with each message of the schedule: what members tell each other of it, and shorter
    segments than a message needs."""

    @property
    def schedule(self) -> "Collective | None":
        """The collective whose bytes its all-reduce puts on every link; None where it chooses by rules of its own."""
        return None

    def require(self) -> None:
        """Raises UnsupportedError, with the fix, where this machine cannot have it."""

    @abstractmethod
    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Connect to every other member. Raises what the stack raises when one does not appear in time."""


STACKS: Final[Registry[Stack]] = Registry("stack", "transports.baselines")
