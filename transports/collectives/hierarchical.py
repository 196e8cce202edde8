"""Hierarchical: reduce-scatter inside each rack, all-reduce across racks, all-gather inside.

What crosses the links between racks is one rack's share, not every worker's (Horovod's hierarchical all-reduce; Cho et
al., "BlueConnect", SysML 2019). The buffer has as many shards as the smallest rack has workers; a rack's first workers
own one each, and the owners of a shard form a ring across the racks.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from transports.collectives.base import COLLECTIVES, Operation, Segmented, Step, World, relocated
from transports.collectives.ring import Ring
from transports.collectives.schedules import direct
from transports.collectives.schedules.phases import AllAtOnce, Phase, Rings
from transports.collectives.schedules.segments import parts

MIN_SEGMENTS: Final = 2


@COLLECTIVES.register
class Hierarchical(Segmented):
    """Inside the racks, across them, inside them again; with one rack, all of it inside."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))
    uses_racks: ClassVar[bool] = True

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
        """See :class:`Collective`."""
        racks = members_by_rack(world)
        split = parts(num_elements, min(map(len, racks)))
        own = next(rack for rack in racks if participant in rack)
        owners, shards = own[: len(split)], [self.segments(*part, element_bytes, MIN_SEGMENTS) for part in split]
        steps = [*direct.push(own, owners, shards, participant)]
        if participant in owners and len(racks) > 1:
            number = owners.index(participant)
            steps += self._across([rack[number] for rack in racks], participant, split[number], element_bytes)
        return [*steps, *direct.pull(own, owners, shards, participant)]

    def phases(self, world: World, num_elements: int, element_bytes: int) -> Sequence[Phase]:
        """To the owners, around the owners' rings, and back."""
        racks = members_by_rack(world)
        num_shards = min(map(len, racks))
        shard = parts(num_elements, num_shards)[0][1]
        shard_bytes = [count * element_bytes for _, count in self.segments(0, shard, element_bytes, MIN_SEGMENTS)]
        up = [(member, owner) for rack in racks for owner in rack[:num_shards] for member in rack if member != owner]
        down = [(owner, member) for member, owner in up]
        across: list[Phase] = []
        if len(racks) > 1:
            ring = Ring().model_copy(update={"segment_bytes": self.segment_bytes})
            owners = [[rack[number] for rack in racks] for number in range(num_shards)]
            of_racks = World(num_workers=len(racks))
            across = [
                phase._replace(members=owners)
                for phase in ring.phases(of_racks, shard, element_bytes)
                if isinstance(phase, Rings)
            ]
        return [AllAtOnce(up, shard_bytes, adds=True), *across, AllAtOnce(down, shard_bytes, adds=False)]

    def _across(
        self, peers: Sequence[int], participant: int, part: tuple[int, int], element_bytes: int
    ) -> Sequence[Step]:
        """The ring of one shard's owners, who know each other by their racks' numbers there."""
        start, count = part
        ring = Ring().model_copy(update={"segment_bytes": self.segment_bytes})
        world = World(num_workers=len(peers))
        steps = ring.schedule("all_reduce", world, peers.index(participant), count, element_bytes=element_bytes)
        return relocated(steps, start=start, peers=peers)


def members_by_rack(world: World) -> list[list[int]]:
    """The workers of each rack, in order."""
    numbers = world.racks or (0,) * world.num_workers
    racks: dict[int, list[int]] = {}
    for worker, number in enumerate(numbers):
        racks.setdefault(number, []).append(worker)
    return [racks[number] for number in sorted(racks)]
