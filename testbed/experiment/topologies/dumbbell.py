"""Two switches and the one link between them that everybody shares: the classic of congestion control."""

from pydantic import Field

from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology


@TOPOLOGIES.register
class Dumbbell(Topology):
    """Half of the places on each side of the link `s0-s1`."""

    bottleneck: float = Field(1.0, gt=0, le=1000)
    """The rate of `s0-s1` over the rate of a worker's link."""

    def fabric(self, num_workers: int) -> Fabric:
        """Two switches, with as many places on each side as half of the workers need."""
        side = -(-num_workers // 2)
        return Fabric(
            switches=("s0", "s1"),
            trunks=(Edge(first="s0", second="s1", rate_factor=self.bottleneck),),
            places=("s0",) * side + ("s1",) * side,
        )
