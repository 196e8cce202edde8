"""Parameter server: workers push their gradients to who adds them up, and pull the sum (Li et al., "Scaling distributed
machine learning with the parameter server", OSDI 2014; "1PS" of Alqahtani and Demirbas, ICCCN 2019, is one server).

Synchronous. The buffer is split evenly over the servers, byte by byte. `dedicated` servers are participants of their
own, with a link of their own; `co_located` ones are the first workers. Unless `pipelined`, a server answers when it has
all of its shard from everybody: push, then pull, 2 N S / (k B) for k dedicated servers. Pipelined, each message goes
back as soon as it is added up, while later ones still come.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

from pydantic import Field

from transports.collectives import direct
from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.segments import parts
from transports.errors import OptionError

MIN_SEGMENTS: Final = 32
"""Of a shard, if they are not too short: while one is added up, others come."""


@COLLECTIVES.register
class ParameterServer(Segmented):
    """One or more servers add up what all workers push, and hand it out."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    servers: int = Field(1, ge=1, le=64)
    """How many share the buffer."""
    placement: Literal["dedicated", "co_located"] = "dedicated"
    """Nodes of their own, or the first workers."""
    pipelined: bool = False
    """Whether a server answers message by message, or when all of its shard has come from everybody."""

    @property
    def num_servers(self) -> int:
        """See :class:`Collective`."""
        return self.servers if self.placement == "dedicated" else 0

    def schedule(
        self,
        operation: Operation,  # noqa: ARG002 (there is one)
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,  # noqa: ARG002 (an all-reduce has none)
    ) -> Sequence[Step]:
        """See :class:`Collective`. Raises OptionError when more servers than workers are to be workers."""
        split = parts(num_elements, self.servers)
        pushed = [self.segments(*part, element_bytes, MIN_SEGMENTS) for part in split]
        pulled = pushed if self.pipelined else [[part] if part[1] else [] for part in split]
        workers = range(world.num_workers)
        if self.placement == "co_located":
            if self.servers > world.num_workers:
                raise OptionError(
                    f"servers: {self.servers} cannot be co_located with {world.num_workers} workers; "
                    f"allowed: at most {world.num_workers}, or `placement: dedicated`"
                )
            owners = range(self.servers)
            return [
                *direct.push(workers, owners, pushed, participant),
                *direct.pull(workers, owners, pulled, participant),
            ]
        if participant in workers:
            servers = range(world.num_workers, world.size)
            return list(_work(servers, pushed, pulled, participant))
        number = participant - world.num_workers
        return list(_serve(workers, number, pushed[number], pulled[number], split[number][0]))


def _work(
    servers: Sequence[int], pushed: Sequence[direct.Segments], pulled: Sequence[direct.Segments], participant: int
) -> Iterator[Step]:
    order = [(participant + offset) % len(servers) for offset in range(len(servers))]  # not all to one server first
    for number in order:
        yield from (Step("send", Chunk("output", *segment), servers[number]) for segment in pushed[number])
    for number in order:
        yield from (Step("receive", Chunk("output", *segment), servers[number]) for segment in pulled[number])


def _serve(
    workers: Sequence[int], number: int, pushed: direct.Segments, pulled: direct.Segments, shard_start: int
) -> Iterator[Step]:
    """The server's `output` is its shard alone."""
    first, *others = workers
    for start, count in pushed:
        chunk = Chunk("output", start - shard_start, count)
        yield Step("receive", chunk, first)
        yield from (Step("reduce", chunk, worker) for worker in others)
    order = [(number + offset) % len(workers) for offset in range(len(workers))]  # not all to one worker first
    for start, count in pulled:
        yield from (Step("send", Chunk("output", start - shard_start, count), worker) for worker in order)
