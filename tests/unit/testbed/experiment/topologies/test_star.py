from testbed.experiment.topologies.base import TOPOLOGIES


def test_every_worker_has_one_link_to_the_switch() -> None:
    network = TOPOLOGIES.parse("star").fabric(3).network(("s0",) * 3)
    assert [node.name for node in network.nodes] == ["w0", "w1", "w2", "s0"]
    assert [edge.name for edge in network.edges] == ["w0-s0", "w1-s0", "w2-s0"]
    assert [node.role for node in network.nodes] == ["worker"] * 3 + ["switch"]
