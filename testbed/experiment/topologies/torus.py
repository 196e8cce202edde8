"""A grid of switches whose edges are joined, in two or three dimensions, a host on each: the supercomputers' network
(Blue Waters, Blue Gene)."""

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, field_validator

from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology, switch_names

MAX_SWITCHES: Final = 128


@TOPOLOGIES.register
class Torus(Topology):
    """Each switch is linked to both its neighbours in every dimension; the last dimension is numbered first."""

    dims: tuple[Annotated[int, Field(ge=2, le=64)], ...] = Field((2, 2), min_length=2, max_length=3)
    """Switches along each of two or three dimensions. Along a dimension of 2 both neighbours are the same switch, and
    there is one link to it."""

    larger: ClassVar[str] = "larger `dims`"

    @field_validator("dims")
    @classmethod
    def _carried(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(dims) > MAX_SWITCHES:
            raise ValueError(f"{' x '.join(map(str, dims))} are {math.prod(dims)} switches; allowed: {MAX_SWITCHES}")
        return dims

    def grown(self, num_places: int) -> Self:
        """With more switches along the shortest dimension, again and again."""
        dims = list(self.dims)
        while math.prod(dims) < num_places:
            dims[dims.index(min(dims))] += 1
        return self.model_copy(update={"dims": tuple(dims)})

    def outline(self, num_workers: int) -> Mapping[str, tuple[float, float]]:
        """A grid; of three dimensions the first one's layers one behind the other, each a little up and right."""
        names = self.fabric(num_workers).switches
        depth, _, _ = (1, *self.dims)[-3:]
        places = itertools.product(*(range(size) for size in (1, *self.dims)[-3:]))
        return {
            name: (column + 0.8 * layer / depth, row - 0.6 * layer / depth)
            for name, (layer, row, column) in zip(names, places, strict=True)
        }

    def fabric(self, num_workers: int) -> Fabric:  # noqa: ARG002 - its size follows from dims
        """A torus of switches, one place on each."""
        positions = list(itertools.product(*(range(size) for size in self.dims)))
        names = dict(zip(positions, switch_names(len(positions)), strict=True))
        trunks = [
            Edge(first=names[position], second=names[self._next(position, dimension)])
            for position in positions
            for dimension, size in enumerate(self.dims)
            if size > 2 or position[dimension] == 0
        ]
        return Fabric(switches=tuple(names.values()), trunks=tuple(trunks), places=tuple(names.values()))

    def _next(self, position: tuple[int, ...], dimension: int) -> tuple[int, ...]:
        moved = list(position)
        moved[dimension] = (moved[dimension] + 1) % self.dims[dimension]
        return tuple(moved)
