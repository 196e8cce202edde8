"""Two tiers of switches, every leaf linked to every spine: today's rows of racks (a folded Clos network)."""

from typing import ClassVar, Self

from pydantic import Field

from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology, switch_names


@TOPOLOGIES.register
class LeafSpine(Topology):
    """Leaves `s0`, `s1`, ..., then spines; leaves x spines links, several equal paths between leaves."""

    leaves: int = Field(2, ge=1, le=64)
    spines: int = Field(2, ge=1, le=32)
    hosts_per_leaf: int | None = Field(None, ge=1, le=64)
    """Places on each leaf; null: as many as the workers need."""
    oversubscription: float = Field(1.0, ge=0.01, le=100)
    """What a leaf's hosts can send over what its uplinks carry; it sets the uplinks' rate."""

    larger: ClassVar[str] = "more `leaves` or `hosts_per_leaf`"

    def grown(self, num_places: int) -> Self:
        """The topology with enough leaves for that many places, where the places on each are given."""
        if self.hosts_per_leaf is None:
            return self
        return self.model_copy(update={"leaves": max(self.leaves, -(-num_places // self.hosts_per_leaf))})

    def fabric(self, num_workers: int) -> Fabric:
        """Uplinks have hosts_per_leaf / (spines x oversubscription) times the rate of a worker's link."""
        hosts = self.hosts_per_leaf or -(-num_workers // self.leaves)
        leaves = switch_names(self.leaves)
        spines = switch_names(self.spines, start=self.leaves)
        factor = hosts / (self.spines * self.oversubscription)
        return Fabric(
            switches=(*leaves, *spines),
            trunks=tuple(Edge(first=leaf, second=spine, rate_factor=factor) for leaf in leaves for spine in spines),
            places=tuple(leaf for leaf in leaves for _ in range(hosts)),
        )
