import pytest
from pydantic import ValidationError

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.workers_per_host import WorkersPerHost
from testbed.plan.placement import place as placed
from testbed.plan.placement import racks_of
from testbed.plan.plan import Plan, make_plan


def experiment(**keys: object) -> Experiment:
    return validate({"name": "t", "workers": 8, "workers_per_host": 4, **keys})


def planned(**keys: object) -> Plan:
    return make_plan(experiment(**keys))


def test_a_number_stands_for_that_many_on_links_as_fast_as_the_machine() -> None:
    assert experiment().workers_per_host == WorkersPerHost(count=4)
    assert validate(experiment().dump()) == experiment()
    plan = planned()
    assert {node.name: node.role for node in plan.nodes if node.role != "worker"} == {
        "h0": "host",
        "h1": "host",
        "s0": "switch",
    }
    unshaped = {direction.link for direction in plan.directions if direction.requested.unshaped}
    assert unshaped == {f"w{rank}-h{rank // 4}" for rank in range(8)}


def test_the_hosts_link_carries_what_its_workers_send_to_others() -> None:
    plan = planned()
    by_hop = {direction.hop: direction for direction in plan.directions}
    # In a ring of eight, one of a host's four workers sends to the other host.
    assert by_hop["h0", "s0"].expected_bytes == plan.traffic["w3", "w4"]
    assert plan.paths["w3", "w4"].text == "w3 > h0 > s0 > h1 > w4"
    assert plan.paths["w0", "w1"].text == "w0 > h0 > w1"


def test_the_prediction_is_of_the_hosts_links() -> None:
    shared, alone = planned().prediction, make_plan(validate({"name": "t", "workers": 8})).prediction
    assert shared.goodput_bps == alone.goodput_bps
    assert shared.predicted_s == pytest.approx(alone.predicted_s, rel=0.05)
    # Whatever the collective, two hosts exchange at least one gradient each way; a ring sends 1.75.
    assert shared.bound_s == pytest.approx(alone.bound_s / 1.75, rel=0.01)
    spread = planned(collective="recursive_doubling").prediction
    assert spread.bottleneck in {"h0 -> s0", "h1 -> s0", "s0 -> h0", "s0 -> h1"}


def test_hosts_are_placed_and_those_on_one_share_a_rack() -> None:
    wanted = experiment(topology={"kind": "leaf_spine", "leaves": 2, "spines": 1}, placement="spread")
    network = placed(wanted)
    attached = {edge.first: edge.second for edge in network.edges}
    assert (attached["h0"], attached["h1"]) == ("s0", "s1")
    assert racks_of(network, 8) == (0, 0, 0, 0, 1, 1, 1, 1)


def test_links_inside_may_be_shaped_and_overridden() -> None:
    intra_host = {"count": 4, "link": {"rate": "10gbit", "queue": "200kB"}}
    by_hop = {
        direction.hop: direction
        for direction in planned(workers_per_host=intra_host, links={"w0-h0": {"rate": "5gbit"}}).directions
    }
    assert by_hop["w1", "h0"].rate_bps == 10e9
    assert by_hop["w1", "h0"].shaper.queue_bytes == 200_000
    assert by_hop["h0", "w0"].rate_bps == 5e9
    assert by_hop["h0", "s0"].rate_bps == 100e6


def test_the_last_host_may_have_fewer() -> None:
    network = placed(experiment(workers=6))
    assert [edge.second for edge in network.edges if edge.intra_host] == ["h0"] * 4 + ["h1"] * 2


def test_all_on_one_host_is_refused() -> None:
    with pytest.raises(SpecError, match="workers_per_host: 8 puts all 8 workers on one host"):
        planned(workers_per_host=8)


def test_a_link_inside_needs_somebody_to_share_with() -> None:
    with pytest.raises(ValidationError, match="a count of 2 or more"):
        WorkersPerHost.model_validate({"count": 1, "link": {"rate": "1gbit"}})


def test_a_contradiction_inside_names_its_key() -> None:
    intra_host = {"count": 4, "link": {"jitter": "2ms", "delay": "1ms"}}
    with pytest.raises(SpecError, match=r"workers_per_host\.link\.jitter"):
        planned(workers_per_host=intra_host)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"count": 4, "link": "fast"}, r"^workers_per_host\.link: 'fast' is no link; write unshaped, or settings"),
        ("two", r"^workers_per_host: 'two' is no number of workers; write 4, or \{count: 4"),
        (0, r"^workers_per_host\.count: "),
    ],
)
def test_what_is_no_sharing_is_refused_with_what_is(value: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        experiment(workers_per_host=value)


def test_switches_inside_may_bridge_too() -> None:
    assert planned(switch="bridged").node("h0").addresses.bridge
