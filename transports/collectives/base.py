"""Who sends what to whom: a collective is a pure function from (operation, world, participant, size) to steps.

The same steps are executed over any channel (`transports/executor.py`), interpreted in numpy by the tests, costed by
the alpha-beta model and turned into the bytes each link must carry (all three in `cost.py`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

from transports.registry import Options, Registry

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]
"""`all_reduce`: input (n,) -> output (n,). `reduce_scatter`: input (n,) -> output (n/world,), rank r gets part r.
`all_gather`: input (n/world,) -> output (n,). `broadcast`: output (n,) of `root` to all. `barrier`: nothing moves but
one element. `num_elements` is always the length of the larger buffer, n."""

Buffer = Literal["input", "output", "scratch"]
StepKind = Literal["send", "receive", "reduce"]


class Chunk(NamedTuple):
    """A run of elements in one of the participant's buffers."""

    buffer: Buffer
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class Step(NamedTuple):
    """One thing a participant does. A step waits only for earlier steps that overlap its chunk; sends to one peer
    leave in list order, receives from one peer arrive in list order. `reduce` receives and adds into the chunk."""

    kind: StepKind
    chunk: Chunk
    peer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Who takes part. Participants are numbered 0..size-1; workers come first, so their number is their rank."""

    num_workers: int

    @property
    def size(self) -> int:
        """The number of participants."""
        return self.num_workers


class Collective(Options):
    """A value on the collective axis."""

    operations: ClassVar[frozenset[Operation]]
    """What this collective can do; the communicator refuses the rest when the spec is planned."""

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
        """The participant's steps, in order. Pure: every participant derives the same world-wide exchange.

        Before the first step the executor has copied the operation's input to where the schedule reads it:
        for all_reduce and broadcast the data lies in `output` (in place); for all_gather the participant's own part
        lies at its place in `output`; for reduce_scatter all of it lies in `input`, a copy that the schedule may
        overwrite, and the participant's own part in `output`.
        """


COLLECTIVES: Final[Registry[Collective]] = Registry("collective", "transports.collectives")
