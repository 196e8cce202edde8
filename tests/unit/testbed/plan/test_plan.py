"""The plan is pure: what it prints is what will be done."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.link import BackendName
from testbed.experiment.sweep import load_sweep
from testbed.plan.plan import Plan, make_plan
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import Costs
from transports.collectives.network_info import NetworkInfo


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


def test_every_link_has_two_directions_and_every_port_its_own_subnet() -> None:
    made = plan(workers=64)
    assert len(made.directions) == 128
    addresses = [port.address for link in made.links for port in link]
    macs = [port.mac for link in made.links for port in link]
    assert len(set(addresses)) == len(set(macs)) == 128
    assert made.links[63][0].address == "10.0.0.254"
    for node in made.nodes:
        assert len(node.name) + len("-eth63") <= 15


def test_what_a_spec_leaves_to_the_machine_is_said() -> None:
    """Two machines, one of which was fitted: their runs of one spec are not the same."""
    specs: list[dict[str, Any]] = [
        {"collective": "auto"},
        {"collective": {"kind": "parameter_server", "pipelined": True}, "link": {"rate": "25gbit"}},
        {"fusion": {"kind": "merged", "backward": "4ms"}, "link": {"rate": "10gbit"}},
        {"workload": {"kind": "allreduce", "stacks": ["auto/tcp"]}},
    ]
    slow = Costs(host_latency_s=900e-6, message_s=60e-6, copy_s_per_byte=1.5e-9)
    for spec in specs:
        experiment = validate({"name": "x", "workers": 4, **spec})
        default, fitted = make_plan(experiment), make_plan(experiment, costs=slow)
        assert default.goes_by_costs
        assert default.decided != fitted.decided, spec
        assert default.decided == make_plan(experiment).decided
    for collective in ("ring", "parameter_server"):
        experiment = validate({"name": "x", "workers": 4, "collective": collective, "link": {"delay": "1ms"}})
        assert make_plan(experiment).decided == make_plan(experiment, costs=slow).decided
        assert not make_plan(experiment).goes_by_costs
    backends: tuple[BackendName, ...] = ("netem", "nfqueue")
    for backend in backends:
        made = make_plan(experiment, works=lambda name, backend=backend: name == backend)
        assert made.decided["delay_backend"] == backend
    assert make_plan(experiment, chosen_dilation=(1.0, "")).decided["dilation"] == 1.0


def test_prediction_lies_between_the_bound_and_a_little_more() -> None:
    prediction = plan(workers=8, link={"rate": "1gbit"}).prediction
    assert prediction.bound_s < prediction.predicted_s < 1.2 * prediction.bound_s


def test_delay_raises_the_prediction() -> None:
    fast, slow = plan().prediction, plan(link={"rate": "100mbit", "delay": "20ms"}).prediction
    assert slow.predicted_s > fast.predicted_s + 6 * 0.04
    assert slow.bound_s == fast.bound_s


def test_the_quickstart_has_at_least_four_megabytes_in_several_buckets() -> None:
    made = plan()
    assert made.prediction.gradient_bytes >= 4_000_000
    assert len(made.buckets) >= 4


def test_commands_address_shape_and_pin_the_congestion_control() -> None:
    node = plan(channel={"kind": "tcp", "congestion": "reno"}).node("w1")
    assert "address add 10.0.0.6/30 dev w1-eth0" in node.ip_commands
    assert "route add default via 10.0.0.5 dev w1-eth0 congctl reno" in node.ip_commands
    assert "neighbour replace 10.0.0.5 lladdr 02:00:00:00:01:01 dev w1-eth0 nud permanent" in node.ip_commands
    assert node.sysctls["net.ipv6.conf.all.disable_ipv6"] == "1"
    assert sum(command.startswith("class add") for command in node.tc_commands) == 1


def test_the_switch_routes_and_shapes_every_port() -> None:
    node = plan(workers=3).node("s0")
    assert node.sysctls["net.ipv4.ip_forward"] == "1"
    assert sum(command.startswith("class add") for command in node.tc_commands) == 3


def test_delay_lies_at_the_receiver_of_each_direction() -> None:
    made = plan(workers=2, link={"rate": "100mbit", "delay": "5ms"})
    assert made.delay_backend == "netem"
    for direction in made.directions:
        assert direction.delay_stage is not None
        assert direction.delay_stage.interface == direction.receiver.interface
    devices = [command for node in made.nodes for command in node.ip_commands if "type ifb" in command]
    assert len(set(devices)) == 4
    assert any("ifb" in command for command in made.node("s0").ip_commands)


def test_a_link_with_only_a_rate_has_no_delay_stage() -> None:
    made = plan(link={"rate": "1gbit", "backend": "nfqueue"})
    assert made.delay_backend is None
    assert all(direction.delay_stage is None for direction in made.directions)
    assert not any(node.firewall_rules or node.daemon_arguments for node in made.nodes)


def test_with_tap_the_relay_is_all_there_is_of_a_link() -> None:
    made = plan(workers=3, link={"rate": "1gbit", "backend": "tap"})
    assert made.delay_backend == "tap"
    assert all(direction.shaper is None and direction.delay_stage for direction in made.directions)
    assert not any(node.tc_commands or node.firewall_rules or node.daemon_arguments for node in made.nodes)
    assert all(direction["shaper"] is None for direction in made.to_json()["directions"])


def test_marks_make_tap_of_auto_and_ask_every_connection_to_bear_them() -> None:
    made = plan(workers=2, links={"s0->w1": {"ecn": "50kB"}})
    assert made.delay_backend == "tap"
    assert all(direction.delay_stage for direction in made.directions), "a relay carries all links or none"
    assert all(node.sysctls["net.ipv4.tcp_ecn"] == "1" for node in made.nodes)
    assert "net.ipv4.tcp_ecn" not in plan(workers=2).node("w0").sysctls


def test_nfqueue_takes_one_queue_at_each_receiving_port() -> None:
    made = plan(workers=3, link={"delay": "1ms", "backend": "nfqueue"})
    assert made.delay_backend == "nfqueue"
    assert made.to_json()["delay_backend"] == "nfqueue"
    rules = [rule for node in made.nodes for rule in node.firewall_rules]
    assert len(rules) == len(set(rules)) == len(made.directions)
    assert {rule.split()[3] for rule in rules} == {direction.receiver.interface for direction in made.directions}
    assert len(made.node("s0").daemon_arguments) == 3
    assert len(made.node("w1").daemon_arguments) == 1


def test_what_auto_stands_for_is_decided_by_the_machine_unless_the_spec_names_it() -> None:
    def backend(auto: BackendName, **link: Any) -> BackendName | None:
        made = make_plan(validate({"name": "x", "link": {"delay": "1ms", **link}}), works=lambda name: name == auto)
        return made.delay_backend

    assert [backend("netem"), backend("nfqueue")] == ["netem", "nfqueue"]
    assert backend("netem", backend="nfqueue") == "nfqueue"
    assert backend("nfqueue", backend="netem") == "netem"


def test_a_delay_that_the_backend_cannot_honour_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match=r"link\.delay: nfqueue honours 0s, or 200us to 1s; 50us .* link.backend=netem"):
        plan(link={"delay": "50us", "backend": "nfqueue"})


def test_buffers_hold_what_a_long_fat_path_has_under_way() -> None:
    short, fat = plan(link={"delay": "1ms"}), plan(link={"rate": "10gbit", "delay": "1ms"})
    assert not any("tcp_rmem" in key for node in short.nodes for key in node.sysctls)
    for node in fat.nodes:
        for name in ("tcp_rmem", "tcp_wmem"):
            limit_bytes = int(node.sysctls[f"net.ipv4.{name}"].split()[2])
            assert limit_bytes >= 2 * (10e9 / 8 * 4e-3)


def directions(made: Plan) -> dict[tuple[str, str], Any]:
    return {direction.hop: direction for direction in made.directions}


def test_the_directions_of_a_link_follow_each_other() -> None:
    made = plan(workers=4, topology={"kind": "torus", "dims": [2, 3]})
    there, back = made.directions[::2], made.directions[1::2]
    assert [direction.hop for direction in there] == [direction.hop[::-1] for direction in back]
    assert [direction.link for direction in there] == ["-".join(direction.hop) for direction in there]


def test_oversubscription_lowers_the_uplinks_rate() -> None:
    made = plan(workers=4, topology={"kind": "leaf_spine", "leaves": 2, "spines": 1, "oversubscription": 4})
    found = directions(made)
    assert found["s0", "s2"].rate_bps == found["s2", "s0"].rate_bps == 50e6
    assert found["w0", "s0"].rate_bps == 100e6
    assert made.prediction.bottleneck is not None
    assert "class add dev s0-eth2 parent 1: classid 1:1 htb rate 50000000bit" in " ".join(made.node("s0").tc_commands)


def test_switches_have_a_route_to_every_worker_over_all_shortest_paths() -> None:
    node = plan(workers=4, topology="leaf_spine", channel={"kind": "tcp", "congestion": "reno"}).node("s0")
    assert (
        "route add 10.0.0.8/30 congctl reno nexthop via 10.0.0.17 dev s0-eth2 nexthop via 10.0.0.21 dev s0-eth3"
    ) in node.ip_commands
    assert len(node.addresses.routes) == 4 + 2
    assert node.sysctls["net.ipv4.fib_multipath_hash_policy"] == "3"


def test_each_switch_hashes_by_its_own_seed_and_the_runs() -> None:
    key = "net.ipv4.fib_multipath_hash_seed"

    def seeds(seed: int) -> list[str]:
        made = plan(workers=4, topology="leaf_spine", seed=seed)
        return [node.sysctls_if_known[key] for node in made.nodes if node.sysctls_if_known]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == len(seeds(1)) + len(seeds(2)) == 4
    assert not plan().node("s0").sysctls_if_known


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"collective": {"kind": "parameter_server", "servers": 9, "placement": "co_located"}},
            "collective.servers: 9 cannot be co_located with 4 workers",
        ),
        ({"collective": "cntk"}, "collective: cntk sums tensor by tensor .* write `fusion: none`"),
        (
            {"collective": "cntk", "fusion": "horovod_5ms"},
            "collective: cntk sums tensor by tensor .* write `fusion: none`",
        ),
        (
            {"collective": {"kind": "cntk", "tensors": [1, 2]}, "fusion": "none"},
            r"collective\.tensors: 3 elements, and",
        ),
        ({"channel": {"kind": "udp", "payload": 4000}}, "channel.payload: 4000 B do not fit an MTU of 1500"),
    ],
)
def test_options_that_transports_refuse_are_spec_errors(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        plan(**keys)


def test_paths_are_printed_and_written() -> None:
    made = plan(workers=4, topology="dumbbell")
    written = {(row["from"], row["to"]): row for row in made.to_json()["paths"]}
    assert written["w1", "w2"] == {
        "from": "w1",
        "to": "w2",
        "path": "w1 > s0 > s1 > w2",
        "bytes": made.traffic["w1", "w2"],
    }
    assert len(written) == 12


def test_plan_is_plain_data_and_the_same_every_time() -> None:
    assert plan().to_json() == plan().to_json()


def test_overrides_reach_the_kernel_in_one_direction_only() -> None:
    made = plan(workers=2, links={"w1->s0": {"rate": "10mbit", "queue": "200kB"}, "s0->w0": {"delay": "5ms"}})
    rates = [[line for line in made.node(name).tc_commands if "class add" in line] for name in ("w0", "w1", "s0")]
    assert ["rate 10000000bit" in line for lines in rates for line in lines] == [False, True, False, False]
    assert [direction.hop for direction in made.directions if direction.delay_stage] == [("s0", "w0")]
    written = {(row["sender"]["node"], row["receiver"]["node"]): row for row in made.to_json()["directions"]}
    assert written["w1", "s0"]["requested"]["queue"] == "200kB"
    assert json.dumps(made.to_json())


def test_auto_takes_what_can_do_all_that_the_links_ask() -> None:
    assert plan(links={"w1-s0": {"loss": "1%"}}).delay_backend == "nfqueue"
    assert plan(links={"w1-s0": {"loss": "1%"}}, packet_mode="mtu").delay_backend == "netem"


def test_packet_mode_limits_what_tcp_makes_of_several_packets() -> None:
    def limits(mode: str, rate: str = "1gbit", **keys: Any) -> set[str]:
        made = plan(packet_mode=mode, link={"rate": rate}, **keys)
        found = [line for node in made.nodes for line in node.ip_commands if " mtu " in line]
        return {line.partition(" mtu ")[2] for line in found}

    assert limits("superframe") == {"1500"}
    assert limits("superframe", "100mbit") == {"1500 gso_max_segs 8"}, "a millisecond at the link's rate"
    assert limits("superframe", "1mbit") == {"1500 gso_max_segs 1"}
    falls = [{"at": "1s", "link": "w*->s0", "rate": "100mbit"}, {"at": "2s", "link": "*", "rate": "1gbit"}]
    assert limits("superframe", changes=falls) == {"1500", "1500 gso_max_segs 8"}, (
        "connections keep what they begin with"
    )
    assert limits("mtu") == {"1500 gso_max_segs 1"}
    assert limits("9000B") == {"1500 gso_max_segs 6"}


def test_what_no_backend_can_is_refused_with_every_reason() -> None:
    links = {"w0->s0": {"delay": "50us", "loss": "1%"}, "w1->s0": {"duplicate": "1%"}}
    with pytest.raises(SpecError) as caught:
        plan(links=links)
    for words in ("links.w0->s0.delay: nfqueue", "links.w1->s0.duplicate: nfqueue", "packet_mode: netem"):
        assert words in str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_that_is_offered_can_be_planned(path: Path) -> None:
    for point in load_sweep(path).points:
        plan = make_plan(point.experiment, chosen_dilation=(46, "as a machine has chosen"))
        assert plan.to_json()["spec_sha256"] == point.experiment.sha256()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"stack": "gloo", "collective": "halving_doubling"}, "stack: gloo .* no use for collective halving_doubling"),
        ({"stack": "openmpi", "channel": "udp"}, "stack: openmpi .* no use for channel udp"),
        ({"stack": "openmpi", "runtime": "docker"}, "stack: openmpi .*; allowed: runtime namespace"),
        ({"stack": "openmpi", "collective": "in_network"}, "stack: openmpi .* no use for collective in_network"),
    ],
)
def test_what_a_baseline_would_ignore_is_refused(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        plan(**keys)


def test_one_server_s_link_is_what_a_parameter_server_waits_for() -> None:
    made = plan(workers=4, collective="parameter_server", fusion={"bytes": "64MiB"})
    once_s = made.prediction.gradient_bytes * 8 / made.prediction.goodput_bps
    assert made.prediction.predicted_s == pytest.approx(2 * 4 * once_s, rel=0.02)
    assert made.prediction.schedule_bound_s == pytest.approx(4 * once_s, rel=0.01)


def test_auto_is_given_the_links_and_its_choice_is_recorded() -> None:
    made = plan(collective="auto", link={"rate": "100mbit", "delay": "1ms"})
    record = made.to_json()
    assert (
        COLLECTIVES.parse(record["collective"])
        == made.collective
        == COLLECTIVES.parse("auto").with_network_info(
            NetworkInfo(
                latency_s=made.latency_s,
                rate_bps=made.prediction.goodput_bps,
                queue_bytes=made.experiment.link.queue_bytes,
                burst_bytes=1448,
                frame_bytes=8 * 1448,
                costs=made.costs,
            )
        )
    )
    assert record["chosen"][-1] == "recursive_doubling"
    assert set(record["chosen"][:-1]).isdisjoint({"recursive_doubling"})
    assert plan(collective="auto").to_json()["chosen"] == plan(collective="auto").to_json()["chosen"]


@pytest.mark.parametrize("compression", ["none", "fp16", "random_k", "powersgd", "thc"])
def test_auto_is_said_to_choose_what_it_chooses_for_the_bytes_that_are_exchanged(compression: str) -> None:
    workload = {"kind": "synthetic", "layers": ["4MiB"] * 2}
    made = plan(collective="auto", compression=compression, workload=workload, link={"rate": "1gbit"})
    reduced = [each for each in made.exchanges if each.operation == "all_reduce"]
    assert [each.kind for each in made.chosen] == [
        made.collective.chosen(made.world, each.num_elements, element_bytes=each.element_bytes).kind for each in reduced
    ]
    small = {each.num_elements * each.element_bytes < 100_000 for each in reduced}
    assert {each.kind == "ring" for each in made.chosen} == {not each for each in small}


def test_auto_chooses_nothing_where_payloads_are_gathered() -> None:
    assert plan(collective="auto", compression="top_k").to_json()["chosen"] == []


def test_collectives_that_choose_know_of_shared_cores_unless_costs_are_fitted() -> None:
    spec = validate({"name": "x", "workers": 8, "collective": "auto", "link": {"rate": "1gbit"}})
    assert make_plan(spec, num_cores=2).network_info.costs.num_cores == 2
    assert make_plan(spec).network_info.costs.num_cores is None
    fitted = Costs(fitted_at="2026-11-23", num_cores=4)
    assert make_plan(spec, costs=fitted, num_cores=2).network_info.costs == fitted
    made = make_plan(spec, num_cores=2)
    assert COLLECTIVES.dump(made.collective)["cores"] == 2
    assert made.costs.num_cores is None, "predictions take hosts as they were measured"


def test_cntk_is_given_the_model_s_tensors() -> None:
    made = plan(collective="cntk", fusion="none")
    counts = [math.prod(shape) for shape in made.experiment.workload.gradient_shapes()]
    assert COLLECTIVES.dump(made.collective)["tensors"] == counts
    fused = plan(collective="halving_doubling", fusion="none")
    headers = {pair: wire - fused.traffic.get(pair, 0) for pair, wire in made.traffic.items()}
    assert min(headers["w0", "w3"], headers["w3", "w0"]) > 48


def test_workers_whose_cost_is_real_have_their_cores_in_virtual_time() -> None:
    keys = {"workload": "synthetic", "hosts": {"w1": {"cpu": 2, "pin": 0}}, "host_cost": "real"}
    slow = plan(dilation=4, **keys)
    assert [slow.limits(rank).cpu_cores for rank in range(3)] == [0.25, 0.5, 0.25]
    assert slow.limits(1).pinned_cores == (0,)
    assert slow.costs.num_cores is None
    assert slow.quota_cores == sum([0.25, 0.5, 0.25, 0.25])
    assert [process["cpu_cores"] for process in slow.to_json()["processes"]] == [0.25, 0.5, 0.25, 0.25]
    assert "cpu_cores" not in plan(dilation=4, workload="synthetic").to_json()["processes"][0]
    assert slow.costs == plan(**keys).costs, "in virtual time as in real"
    assert plan(dilation=4, workload="synthetic").limits(0).cpu_cores is None
    faster = plan(dilation=4, workload="synthetic").costs
    assert faster.host_latency_s == pytest.approx(slow.costs.host_latency_s / 4)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workload": "training", "dilation": 1}, r"host_cost: real is for what can be run in slower time: workload: "),
        ({"workload": "synthetic", "collective": "parameter_server"}, "has servers, which nothing holds"),
        ({"workload": "synthetic", "host_cost": "faster", "hosts": {"w0": {"cpu": 1}}}, "say host_cost: real"),
    ],
)
def test_whose_cost_cannot_be_kept_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        plan(**{"host_cost": "real", "dilation": 2, **keys})


def test_a_slow_or_distant_host_for_background_traffic_changes_nothing_for_the_gradients() -> None:
    spec = {"name": "x", "collective": "auto", "fusion": "merged", "hosts": {"x0": {"at": "s0"}}}
    near = make_plan(validate(spec))
    far = make_plan(validate({**spec, "links": {"x0-s0": {"rate": "1mbit", "delay": "100ms"}}}))
    assert (far.latency_s, far.propagation_s, far.buckets) == (near.latency_s, near.propagation_s, near.buckets)
    assert (far.collective, far.prediction) == (near.collective, near.prediction)
