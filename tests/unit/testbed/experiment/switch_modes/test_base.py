"""Every way of forwarding gives every node of a network without loops its ports, addresses and paths."""

import pytest

from testbed.experiment.experiment import validate
from testbed.experiment.switch_modes.base import SWITCH_MODES
from testbed.plan.plan import make_plan


@pytest.mark.parametrize("kind", SWITCH_MODES.kinds())
def test_every_node_has_ports_and_an_address_of_its_own(kind: str) -> None:
    plan = make_plan(validate({"name": "x", "workers": 3, "switch": kind}))
    assert len(plan.links) == 3
    ports = [port for ends in plan.links for port in ends]
    assert len({(port.node, port.interface) for port in ports}) == len(ports)
    assert len({port.mac for port in ports}) == len(ports)
    assert sorted(plan.host_names()) == ["w0", "w1", "w2"]
    assert len(set(plan.host_names().values())) == 3
    assert all(node.addresses.addresses for node in plan.nodes)


def test_a_plain_name_and_a_mapping_are_the_same() -> None:
    made = [validate({"name": "x", "switch": value}) for value in ("bridged", {"kind": "bridged"})]
    assert made[0] == made[1]
    assert made[0].sha256() != validate({"name": "x"}).sha256()
