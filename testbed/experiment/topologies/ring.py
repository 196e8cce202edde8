"""Switches in a circle, a host on each."""

import math
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field

from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology, switch_names


@TOPOLOGIES.register
class Ring(Topology):
    """Each switch is linked to the next, and the last one to the first."""

    switches: int | None = Field(None, ge=3, le=128)
    """Null: as many as there are workers, and at least 3."""

    larger: ClassVar[str] = "more `switches`"

    def grown(self, num_places: int) -> Self:
        """The topology with enough switches for that many places, where their number is given."""
        if self.switches is None:
            return self
        return self.model_copy(update={"switches": max(self.switches, num_places)})

    def outline(self, num_workers: int) -> Mapping[str, tuple[float, float]]:
        """A circle, the first switch on top, clockwise."""
        names = self.fabric(num_workers).switches
        turn, radius = 2 * math.pi / len(names), 0.5 / math.sin(math.pi / len(names))
        return {
            name: (radius * math.sin(number * turn), -radius * math.cos(number * turn))
            for number, name in enumerate(names)
        }

    def fabric(self, num_workers: int) -> Fabric:
        """A ring of switches: as many links as switches, one place on each switch."""
        names = switch_names(self.switches or max(3, num_workers))
        following = (*names[1:], names[0])
        return Fabric(
            switches=names,
            trunks=tuple(Edge(first=name, second=next_) for name, next_ in zip(names, following, strict=True)),
            places=names,
        )
