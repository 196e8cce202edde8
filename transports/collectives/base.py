"""Who sends what to whom: a collective is a pure function from (operation, world, participant, size) to steps.

The same steps are executed over any channel (`transports/execution/executor.py`), interpreted in numpy by the tests,
timed by the cost model (`timing.py`) and turned into the bytes each link must carry (`cost.py`). They ask for a
schedule through `collectives/schedules/defaults.py`, which has one for every operation.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self

from pydantic import Field

from transports.collectives.schedules.phases import Phase
from transports.collectives.schedules.segments import segments
from transports.registry import Options, Registry
from transports.units import Size

if TYPE_CHECKING:
    import torch

    from transports.collectives.in_network import InNetwork
    from transports.collectives.network_info import NetworkInfo
    from transports.group import Group

Operation = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "reduce", "gather", "scatter", "all_to_all"
]
"""`all_reduce`: input (n,) -> output (n,). `reduce_scatter`: input (n,) -> output (n/world,), rank r gets part r.
`all_gather`: input (n/world,) -> output (n,). `broadcast`: output (n,) of `root` to all. `barrier`: nothing moves but
one element. `reduce`: input (n,) -> output (n,) of `root`. `gather`: input (n/world,) -> output (n,) of `root`.
`scatter`: input (n,) of `root` -> output (n/world,). `all_to_all`: input (n,) -> output (n,), part p of rank r's input
becomes part r of rank p's output. `num_elements` is always the length of the larger buffer, n."""

AggregatorAssignment = tuple[str, int]
"""A member's place at an aggregator: the address of that, and the member's number there."""
Buffer = Literal["input", "output", "scratch"]
"""`scratch` is the schedule's own: as long as its steps reach, and whatever when it begins."""
StepKind = Literal["send", "receive", "reduce", "add"]


class Chunk(NamedTuple):
    """A run of elements in one of the participant's buffers."""

    buffer: Buffer
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class Step(NamedTuple):
    """One thing a participant does. A step waits only for earlier steps that overlap its chunk; sends to one peer
    leave in list order, receives from one peer arrive in list order. `reduce` receives and adds into the chunk; `add`
    adds a chunk of the participant's own, `source`, and its peer is the participant. A step with `after` also waits for
    what writes those chunks: it paces a sender by what came back."""

    kind: StepKind
    chunk: Chunk
    peer: int
    source: Chunk | None = None
    after: tuple[Chunk, ...] = ()


def reach(steps: Sequence[Step], buffer: Buffer) -> int:
    """How long that buffer must be for those steps, in elements."""
    chunks = [chunk for step in steps for chunk in (step.chunk, step.source) if chunk and chunk.buffer == buffer]
    return max((chunk.start + chunk.count for chunk in chunks), default=0)


def relocated(steps: Sequence[Step], *, start: int, peers: Sequence[int] | None = None) -> list[Step]:
    """A schedule made for a buffer that begins at 0, and for participants that are numbered from 0, where its `output`
    begins at `start` and participant i is called `peers[i]`."""

    def there(chunk: Chunk) -> Chunk:
        return chunk._replace(start=start + chunk.start) if chunk.buffer == "output" else chunk

    moved: dict[int, tuple[Chunk, ...]] = {}  # many steps share what they wait for

    def all_there(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        if id(chunks) not in moved:
            moved[id(chunks)] = tuple(map(there, chunks))
        return moved[id(chunks)]

    return [
        step._replace(
            chunk=there(step.chunk),
            peer=step.peer if peers is None else peers[step.peer],
            source=None if step.source is None else there(step.source),
            after=all_there(step.after),
        )
        for step in steps
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Who takes part. Participants are numbered 0..size-1; workers come first, so their number is their rank."""

    num_workers: int
    num_servers: int = 0
    """Participants that have no values of their own."""
    racks: tuple[int, ...] = ()
    """For each worker, the number of its rack; empty: all in one."""

    @property
    def size(self) -> int:
        """The number of participants."""
        return self.num_workers + self.num_servers


COUNT_BYTES: Final = 8
"""Of what :meth:`Reducer.settle` tells every other member: an int64."""


class Reducer(Protocol):
    """Sums floats for one member in the schedule's stead. Driven by the group's communication thread, apart from
    :meth:`cancel` and :meth:`statistics`."""

    def adds(self, dtype: "torch.dtype", op: str) -> bool:
        """Whether it does such a reduction."""

    def all_reduce(self, values: "torch.Tensor") -> bool:
        """Sum (n,) over all members, in place; False when it can do no more and nothing has been done. After False,
        :meth:`settle` comes before anything else."""

    def settle(
        self,
        tell: Callable[[int], Sequence[int]],
        broadcast: Callable[["torch.Tensor", int], None],
        values: "torch.Tensor | None" = None,
    ) -> bool:
        """Before members do anything else together: whoever misses the last sum gets it, into `values`. `tell` gives
        everybody's number for one's own. True when `values` has been filled."""

    def statistics(self) -> dict[str, Any]:
        """What it has done for this member. Callable from any thread."""

    def cancel(self) -> None:
        """From another thread: what is under way fails soon."""

    def close(self) -> None:
        """Leave; nothing can be summed any more."""


class Collective(Options):
    """A value on the collective axis."""

    operations: ClassVar[frozenset[Operation]]
    """What it has its own schedule for, `all_reduce` always; `collectives/schedules/defaults.py` has one for everything
    else."""
    uses_racks: ClassVar[bool] = False
    """Whether its schedule depends on which worker is in which rack."""

    @property
    def num_servers(self) -> int:
        """Participants that it needs beside the workers."""
        return 0

    def world(self, num_workers: int, *, racks: tuple[int, ...] = ()) -> World:
        """The participants when so many workers use it."""
        return World(num_workers=num_workers, num_servers=self.num_servers, racks=racks)

    def with_network_info(
        self,
        info: "NetworkInfo",  # noqa: ARG002 (for those who ask)
        *,
        tensors: tuple[int, ...] = (),  # noqa: ARG002
    ) -> Self:
        """The same, with what it may need to know: of the participants' links and hosts, and of the gradient the
        elements of its tensors, the last one first, as DistributedDataParallel lays them into buckets."""
        return self

    @property
    def goes_by_hosts(self) -> bool:
        """Whether :meth:`with_network_info` goes by what hosts add to links, so that it says another thing on another
        machine."""
        return False

    def chosen(self, world: World, num_elements: int, *, element_bytes: int) -> "Collective":  # noqa: ARG002
        """The one that does an all-reduce of that size: itself, unless it leaves that to others."""
        return self

    def chosen_for(self, operation: Operation, world: World, num_elements: int, *, element_bytes: int) -> "Collective":
        """The one that carries an operation of that size out: what is left to others are all-reduces alone."""
        if operation != "all_reduce":
            return self
        return self.chosen(world, num_elements, element_bytes=element_bytes)

    def with_assignment(self, assignments: Mapping[str, AggregatorAssignment]) -> Self:  # noqa: ARG002 (for those who need one)
        """The same, with a member's aggregators: see :class:`transports.collectives.in_network.InNetwork`."""
        return self

    def reducer(self, group: "Group") -> "Reducer | None":  # noqa: ARG002 (for those who have one)
        """What sums floats in the schedule's stead, opened for that member; None: the schedule does."""
        return None

    @property
    def aggregation(self) -> "InNetwork | None":
        """What it asks of the aggregators that a run makes for it; None: it needs none."""
        return None

    def link_bytes(self, operation: Operation, num_elements: int, element_bytes: int) -> int | None:  # noqa: ARG002
        """What each worker's link carries each way in such an exchange, of floats, where something on the way does it;
        None: the participants do, by the schedule (`cost.sent_bytes`)."""
        return None

    def exchange_s(
        self,
        operation: Operation,  # noqa: ARG002 (for those who are not a schedule)
        num_elements: int,  # noqa: ARG002
        element_bytes: int,  # noqa: ARG002
        *,
        rate_bps: float,  # noqa: ARG002
        alpha_s: float,  # noqa: ARG002
    ) -> float | None:
        """Of the same on links of that rate, when an empty packet takes `alpha_s`; None: as long as the schedule does
        (`timing.exchange_s`)."""
        return None

    def phases(self, world: World, num_elements: int, element_bytes: int) -> Sequence[Phase] | None:  # noqa: ARG002
        """An all-reduce as phases, one after the other on each participant; None: only messages tell."""
        return None

    @property
    def sum_roundoff(self) -> float | None:
        """The unit roundoff of its sums where it adds floats in a narrower form than theirs; None: it does not."""
        return None

    def buckets_incompatibility(self, buckets: Sequence[int]) -> str | None:  # noqa: ARG002 (for those who care)
        """Why it cannot reduce gradients in buckets of so many elements: the key of a spec, the reason and the fix."""
        return None

    def pushes_incompatibility(self) -> str | None:
        """Why servers of its own cannot take single workers' gradients, and the fix; None: they can."""
        return "needs servers of its own: write `collective: parameter_server`, and no stack"

    def of_further_group(self) -> "Collective":
        """What a process' groups after the first one use: the same, unless what it needs is there once."""
        return self

    @abstractmethod
    def schedule(
        self,
        operation: Operation,
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        """The participant's steps, in order. Pure: every participant derives the same world-wide exchange. Called only
        for one of `operations`, and for two workers or more.

        Before the first step the executor has copied the operation's input to where the schedule reads it:
        for all_reduce, reduce and broadcast the data lies in `output` (in place); for all_gather the participant's own
        part lies at its place in `output`; for reduce_scatter all of it lies in `input`, a copy that the schedule may
        overwrite, and the participant's own part in `output`. A server's `output` is as long as its steps reach.
        """


class Segmented(Collective):
    """One that cuts what it moves into messages of limited length, so that the next step can begin with the first."""

    segment_bytes: Size = Field(default=512 * 1024, gt=0, description="longest message")

    def segments(self, start: int, count: int, element_bytes: int, wanted: int = 1) -> list[tuple[int, int]]:
        """(start, count) of the messages of that run of elements; see
        :func:`transports.collectives.schedules.segments`."""
        return segments(start, count, element_bytes=element_bytes, segment_bytes=self.segment_bytes, wanted=wanted)


COLLECTIVES: Final[Registry[Collective]] = Registry("collective", "transports.collectives")
