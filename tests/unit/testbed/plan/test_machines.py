from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.machines import Machines
from testbed.experiment.switch_modes.base import SWITCH_MODES
from testbed.plan.machines import Spread, spread_over
from testbed.plan.plan import Plan, make_plan


def machines(first: list[str], second: list[str]) -> Machines:
    return Machines.model_validate(
        {
            "machines": {
                "m0": {"address": "10.99.0.1", "namespace": "/run/netns/m0", "nodes": first},
                "m1": {"address": "10.99.0.2", "nodes": second},
            }
        }
    )


def planned(first: list[str], second: list[str], **keys: Any) -> Plan:
    made = make_plan(validate({"name": "t", "workers": 4, **keys}), works=lambda _: True)
    return spread_over(made, machines(first, second))


def spread_of(plan: Plan) -> Spread:
    assert plan.spread is not None
    return plan.spread


def test_only_links_between_machines_are_tunnels() -> None:
    spread = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"]))
    assert [machine.nodes for machine in spread.machines] == [("w0", "w1", "s0"), ("w2", "w3")]
    assert [(tunnel.first.node, tunnel.second.node) for tunnel in spread.tunnels] == [("w2", "s0"), ("w3", "s0")]
    assert [tunnel.machines for tunnel in spread.tunnels] == [("m1", "m0"), ("m1", "m0")]
    assert [spread.crosses(hop) for hop in (("w0", "s0"), ("s0", "w2"))] == [False, True]


def test_a_dumbbell_has_one_link_between_its_halves() -> None:
    plan = planned(["s0", "w0", "w1"], ["s1", "w2", "w3"], topology="dumbbell", link={"rate": "100mbit"})
    (tunnel,) = spread_of(plan).tunnels
    assert {tunnel.first.node, tunnel.second.node} == {"s0", "s1"}


def test_patterns_name_nodes() -> None:
    assert spread_of(planned(["s*", "w[01]"], ["w2", "w3"])).machines[0].nodes == ("w0", "w1", "s0")


def test_the_network_between_needs_the_sum_and_what_vxlan_adds() -> None:
    there, back = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"], link={"rate": "100mbit"})).needs
    for need in (there, back):
        assert need.num_links == 2
        assert need.rate_bps == 200e6
        assert need.wire_bps == pytest.approx(200e6 * 1564 / 1514)
        assert need.packet_bytes == 1550
    assert (there.source, there.target) == (back.target, back.source) == ("m0", "m1")


def test_directions_are_summed_by_themselves() -> None:
    links = {"w2->s0": {"rate": "20mbit"}, "s0->w3": {"rate": "30mbit"}}
    there, back = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"], link={"rate": "100mbit"}, links=links)).needs
    assert there.rate_bps == 130e6
    assert back.rate_bps == 120e6


def test_in_slower_time_less_is_needed() -> None:
    keys = {"workload": {"kind": "training", "pace": {"forward": "1ms", "backward": "2ms"}}, "dilation": 4}
    there, _ = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"], link={"rate": "100mbit"}, **keys)).needs
    assert there.rate_bps == 50e6


def test_larger_packets_need_a_larger_mtu() -> None:
    there, _ = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"], mtu=9000)).needs
    assert there.packet_bytes == 9050


def test_ends_of_a_link_face_each_other_in_a_network_of_the_run_s_own() -> None:
    spread = spread_of(planned(["s0", "w0", "w1"], ["w2", "w3"]))
    devices = dict(spread.devices("260915t142233-3fa9c1"))
    assert sorted(port.interface for port in devices) == ["s0-eth2", "s0-eth3", "w2-eth0", "w3-eth0"]
    for tunnel in spread.tunnels:
        first, second = devices[tunnel.first], devices[tunnel.second]
        assert first.vni == second.vni < 2**24
        assert (first.local, first.remote) == (second.remote, second.local) == ("10.99.0.2", "10.99.0.1")
        assert first.mac == tunnel.first.mac
    vnis = {device.vni for device in devices.values()}
    assert len(vnis) == 2
    assert vnis.isdisjoint(device.vni for _, device in spread.devices("260915t142233-3fa9c2"))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (["s0", "w0"], ["w2", "w3"], "machines: w1 is on no machine"),
        (["s0", "w0", "w1"], ["w*"], "machines: w0 is on both m0 and m1"),
        (["s0", "w0", "w1", "x7"], ["w2", "w3"], r"machines\.m0\.nodes: 'x7' names no node of the plan; there are w0"),
    ],
)
def test_each_node_is_on_one_machine(first: list[str], second: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        planned(first, second)


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("runtime: docker", {"runtime": "docker"}),
        ("switch: bridged", {"switch": "bridged"}),
        ("collective: in_network", {"collective": "in_network"}),
        ("workload: command", {"workload": {"kind": "command", "argv": ["true"]}}),
        ("link.backend: tap", {"link": {"delay": "1ms", "backend": "tap"}}),
        ("link.backend: netem", {"link": {"delay": "1ms", "backend": "netem"}}),
        (
            "background: bulk",
            {
                "background": [{"kind": "bulk", "from": "x0", "to": "x1"}],
                "hosts": {"x0": {"at": "s0"}, "x1": {"at": "s0"}},
            },
        ),
        ("storage: full_read", {"storage": {"kind": "full_read", "data": "1MiB"}}),
        ("changes", {"changes": [{"at": "1s", "link": "w0-s0", "rate": "50mbit"}]}),
    ],
)
def test_what_does_not_work_across_machines_is_refused_by_its_field(field: str, keys: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=f"{field} cannot be had on two machines yet; allowed with --machines: "):
        planned(["s*", "w0", "w1", "[xd]*"], ["w2", "w3"], **keys)


def test_what_is_allowed_instead_is_what_each_value_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = ["s0", "w0", "w1"], ["w2", "w3"]
    with pytest.raises(SpecError, match=r"allowed with --machines: allreduce, replay, synthetic, training$"):
        planned(*halves, workload={"kind": "command", "argv": ["true"]})
    with pytest.raises(SpecError, match=r"allowed with --machines: nfqueue, or links without delay, jitter and loss$"):
        planned(*halves, link={"delay": "1ms", "backend": "tap"})
    with pytest.raises(SpecError, match=r"storage: full_read .*; allowed with --machines: none$"):
        planned(*halves, storage={"kind": "full_read", "data": "1MiB", "at": "s0"})
    monkeypatch.setattr(SWITCH_MODES["routed"], "across_machines", False)
    monkeypatch.setattr(SWITCH_MODES["bridged"], "across_machines", True)
    with pytest.raises(SpecError, match=r"switch: routed .*; allowed with --machines: bridged$"):
        planned(*halves)


def test_delays_by_nfqueue_are_had() -> None:
    plan = planned(["s0", "w0", "w1"], ["w2", "w3"], link={"delay": "2ms", "backend": "nfqueue"})
    assert {need.least_delay_s for need in spread_of(plan).needs} == {2e-3}


def test_a_link_that_has_no_rate_is_on_one_machine() -> None:
    with pytest.raises(SpecError, match="has no rate, because its ends are in one host"):
        planned(["w0"], ["w1", "w2", "w3", "s*", "h*"], workers_per_host=2)


def test_a_link_between_machines_cannot_be_made_faster_than_what_was_measured() -> None:
    plan = planned(["s0", "w0", "w1"], ["w2", "w3"], link={"rate": "100mbit"})
    directions = {direction.hop: direction for direction in plan.directions}
    for hop, refused in {("w0", "s0"): False, ("w2", "s0"): True}.items():
        before = plan.requested[hop]
        faster = type(before)(
            link=before.link, hop=hop, spec=before.spec.model_copy(update={"rate_bps": 2e8}), keys=before.keys
        )
        if refused:
            with pytest.raises(SpecError, match=r"w2 -> s0: the link is between two machines.*100mbit"):
                plan.changed(directions[hop], faster)
        else:
            assert plan.changed(directions[hop], faster).rate_bps == 2e8


def test_a_plan_on_one_machine_says_nothing_of_machines() -> None:
    made = make_plan(validate({"name": "t", "workers": 4}))
    assert made.spread is None
    assert "spread" not in made.to_json()
    assert planned(["s0", "w0", "w1"], ["w2", "w3"]).to_json()["spread"]["links_between"] == ["w2-s0", "w3-s0"]
