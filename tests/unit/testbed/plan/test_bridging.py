import itertools

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan


def planned(**keys: object) -> Plan:
    return make_plan(validate({"name": "t", "workers": 4, "switch": "bridged", **keys}))


def test_every_frame_is_forwarded_along_the_plans_path() -> None:
    plan = planned(topology="dumbbell", placement="spread")
    far = {port.interface: other for link in plan.links for port, other in (link, link[::-1])}
    macs = {rank: plan.worker_port(rank).mac for rank in range(4)}
    for source, target in itertools.permutations(range(4), 2):
        port = far[plan.worker_port(source).interface]
        visited = [f"w{source}", port.node]
        while port.node != f"w{target}":
            bridge = plan.node(port.node).addresses.bridge
            assert bridge is not None
            port = far[dict(bridge.entries)[macs[target]]]
            visited.append(port.node)
        assert " > ".join(visited) == plan.paths[f"w{source}", f"w{target}"].text


def test_everybody_knows_everybody_and_only_once() -> None:
    plan = planned()
    addresses = {name for node in plan.nodes for name, _ in node.addresses.addresses}
    assert addresses == {"w0-eth0", "w1-eth0", "w2-eth0", "w3-eth0", "s0-br"}
    for node in plan.nodes:
        assert len({neighbour.address for neighbour in node.addresses.neighbours}) == 4
        assert len({neighbour.mac for neighbour in node.addresses.neighbours}) == 4
        assert node.sysctls["net.ipv4.ip_forward"] == "0"
    assert plan.node("s0").sysctls_if_known["net.bridge.bridge-nf-call-iptables"] == "0"


@pytest.mark.parametrize("topology", ["ring", "leaf_spine", {"kind": "torus", "dims": [2, 2]}, "fat_tree"])
def test_a_topology_with_loops_is_refused_naming_what_can(topology: object) -> None:
    with pytest.raises(SpecError, match=r"switch: bridged needs one path .* switch=routed"):
        planned(topology=topology)


def test_one_spine_has_no_loop() -> None:
    assert planned(topology={"kind": "leaf_spine", "spines": 1}).node("s2").addresses.bridge


def test_a_delay_that_a_bridge_would_pass_by_is_refused() -> None:
    with pytest.raises(SpecError, match=r"switch: nfqueue delays .*link.backend=netem or tap can"):
        planned(link={"delay": "1ms", "backend": "nfqueue"})
    assert planned(link={"delay": "1ms"}).delay_backend == "netem"
