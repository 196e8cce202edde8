"""Every worker hangs on one switch: the rack of the papers."""

from testbed.topologies.base import TOPOLOGIES, Edge, Network, Node, Topology


@TOPOLOGIES.register
class Star(Topology):
    """N workers, one switch, N links."""

    def network(self, num_workers: int) -> Network:
        """`w0`..`w<N-1>` around `s0`."""
        workers = tuple(Node(name=f"w{rank}", role="worker") for rank in range(num_workers))
        return Network(
            nodes=(*workers, Node(name="s0", role="switch")),
            edges=tuple(Edge(first=worker.name, second="s0") for worker in workers),
        )
