"""The k-ary fat tree: full bisection bandwidth from switches with k ports each (Al-Fares, Loukissas and Vahdat,
SIGCOMM 2008)."""

from typing import ClassVar, Self

from pydantic import Field, field_validator

from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology, switch_names


@TOPOLOGIES.register
class FatTree(Topology):
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 places for hosts.

    Numbered edge switches first (pod by pod), then aggregation switches (pod by pod), then core switches.
    """

    k: int = Field(4, ge=2, le=8)
    """Ports per switch; even, 2 to 8."""

    larger: ClassVar[str] = "a larger `k`"

    @field_validator("k")
    @classmethod
    def _even(cls, k: int) -> int:
        if k % 2:
            raise ValueError("half of a switch's ports go up and half down; allowed: 2, 4, 6, 8")
        return k

    def grown(self, num_places: int) -> Self:
        """A fat tree with enough places, of switches with as many ports as that takes."""
        k = self.k
        while k**3 // 4 < num_places:
            k += 2
        return self.model_copy(update={"k": k})

    def fabric(self, num_workers: int) -> Fabric:  # noqa: ARG002 - its size follows from k
        """Aggregation switch j of every pod reaches core switches j k/2 to (j + 1) k/2 - 1."""
        half = self.k // 2
        edges = switch_names(self.k * half)
        aggregations = switch_names(self.k * half, start=self.k * half)
        cores = switch_names(half * half, start=2 * self.k * half)
        trunks: list[Edge] = []
        for pod in range(self.k):
            lower, upper = (tier[pod * half : (pod + 1) * half] for tier in (edges, aggregations))
            trunks += [Edge(first=edge, second=aggregation) for edge in lower for aggregation in upper]
            trunks += [
                Edge(first=aggregation, second=core)
                for index, aggregation in enumerate(upper)
                for core in cores[index * half : (index + 1) * half]
            ]
        return Fabric(
            switches=(*edges, *aggregations, *cores),
            trunks=tuple(trunks),
            places=tuple(edge for edge in edges for _ in range(half)),
        )
