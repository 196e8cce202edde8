"""Parameter server: workers push their gradients to who adds them up, and pull the sum (Li et al., "Scaling distributed
machine learning with the parameter server", OSDI 2014; "1PS" of Alqahtani and Demirbas, ICCCN 2019, is one server).

Synchronous. The buffer is split evenly over the servers, byte by byte. `dedicated` servers are participants of their
own, with a link of their own; `co_located` ones are the first workers. Unless `pipelined`, a server answers when it has
all of its shard from everybody: push, then pull, 2 N S / (k B) for k dedicated servers. Pipelined, each message goes
back as soon as it is added up, while later ones still come: half of that.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.network_info import NetworkInfo
from transports.collectives.schedules import direct
from transports.collectives.schedules.segments import Segments, parts
from transports.errors import OptionError
from transports.units import Size

MIN_SEGMENTS: Final = 128
"""Of a shard, if they are not too short: while one is added up, others come."""
MIN_AHEAD: Final = 4
"""Messages under way from one worker to one server."""


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
    credit_bytes: Size = Field(512 * 1024, alias="credit", gt=0)
    """Pipelined, of dedicated servers: what all workers together may have under way to one server before its answer;
    two round trips of the links where that is more and is known."""

    @model_validator(mode="after")
    def _credit_is_read(self) -> Self:
        """By value: plain data that a spec comes back from names every option."""
        if not self._is_paced and self.credit_bytes != type(self).model_fields["credit_bytes"].default:
            raise ValueError("credit: only pipelined, dedicated servers have one; say pipelined: true")
        return self

    @property
    def _is_paced(self) -> bool:
        """Whether workers wait for answers to what they have pushed."""
        return self.pipelined and self.placement == "dedicated"

    @property
    def num_servers(self) -> int:
        """See :class:`Collective`."""
        return self.servers if self.placement == "dedicated" else 0

    def pushes_incompatibility(self) -> str | None:
        """See :class:`Collective`."""
        if not self.num_servers:
            return super().pushes_incompatibility()
        return "answers a gradient that has come whole; leave collective.pipelined out" if self.pipelined else None

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (it takes buffers whole)
        """See :class:`Collective`."""
        if not self._is_paced:
            return self
        return self.model_copy(update={"credit_bytes": max(self.credit_bytes, info.two_round_trips_bytes)})

    @property
    def goes_by_hosts(self) -> bool:
        """See :class:`Collective`."""
        return self._is_paced

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
                    f"collective.servers: {self.servers} cannot be co_located with {world.num_workers} workers; "
                    f"allowed: at most {world.num_workers}, or `placement: dedicated`"
                )
            owners = range(self.servers)
            return [
                *direct.push(workers, owners, pushed, participant),
                *direct.pull(workers, owners, pulled, participant),
            ]
        if participant in workers:
            servers = range(world.num_workers, world.size)
            if self.pipelined:
                longest = max((count for part in pushed for _, count in part), default=1) * element_bytes
                num_ahead = max(MIN_AHEAD, math.ceil(self.credit_bytes / (world.num_workers * longest)))
                return list(_work_pipelined(servers, pushed, num_ahead, participant))
            return list(_work(servers, pushed, pulled, participant))
        number = participant - world.num_workers
        return list(_serve(workers, number, pushed[number], pulled[number], split[number][0]))


def _work(
    servers: Sequence[int], pushed: Sequence[Segments], pulled: Sequence[Segments], participant: int
) -> Iterator[Step]:
    """Push all, then pull all."""
    order = _order(participant, len(servers))
    for number in order:
        yield from (Step("send", Chunk("output", *segment), servers[number]) for segment in pushed[number])
    for number in order:
        yield from (Step("receive", Chunk("output", *segment), servers[number]) for segment in pulled[number])


def _work_pipelined(
    servers: Sequence[int], shards: Sequence[Segments], num_ahead: int, participant: int
) -> Iterator[Step]:
    """Push a message when the one `num_ahead` before it has come back as a sum.

    Without that, a worker that TCP favours runs ahead of the others by what kernels buffer. The server can add up only
    what all have sent, so its answers lag by those megabytes, and the end of the exchange by the time they take.
    """
    for number in _order(participant, len(servers)):
        chunks = [Chunk("output", *segment) for segment in shards[number]]
        for position, chunk in enumerate(chunks):
            answered = chunks[position - num_ahead] if position >= num_ahead else None
            if answered:
                yield Step("receive", answered, servers[number])
            yield Step("send", chunk, servers[number], after=(answered,) if answered else ())
        yield from (Step("receive", chunk, servers[number]) for chunk in chunks[-num_ahead:])


def _order(first: int, size: int) -> list[int]:
    """Not all to one first."""
    return [(first + offset) % size for offset in range(size)]


def _serve(workers: Sequence[int], number: int, pushed: Segments, pulled: Segments, shard_start: int) -> Iterator[Step]:
    """The server's `output` is its shard alone."""
    first, *others = workers
    for start, count in pushed:
        chunk = Chunk("output", start - shard_start, count)
        yield Step("receive", chunk, first)
        yield from (Step("reduce", chunk, worker) for worker in others)
    order = _order(number, len(workers))
    for start, count in pulled:
        yield from (Step("send", Chunk("output", start - shard_start, count), worker) for worker in order)
