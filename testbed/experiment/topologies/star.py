"""Every worker hangs on one switch: the rack of the papers."""

from testbed.experiment.topologies.base import TOPOLOGIES, Fabric, Topology


@TOPOLOGIES.register
class Star(Topology):
    """N workers, one switch, N links."""

    def fabric(self, num_workers: int) -> Fabric:
        """`s0` and nothing else."""
        return Fabric(switches=("s0",), trunks=(), places=("s0",) * num_workers)
