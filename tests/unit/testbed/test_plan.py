"""The plan is pure: what it prints is what will be done."""

from typing import Any

import pytest

from testbed.plan import Plan, fuse, make_plan
from testbed.spec.experiment import validate


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


def test_what_a_ring_must_carry_is_the_schedule_with_headers() -> None:
    made = plan(workers=4)
    payload = 2 * 3 / 4 * made.prediction.gradient_bytes
    for direction in made.directions:
        assert direction.expected_bytes == pytest.approx(payload * 1514 / 1448, rel=2e-3)
        assert direction.expected_bytes > payload * 1514 / 1448


def test_prediction_lies_between_the_bound_and_a_little_more() -> None:
    prediction = plan(workers=8, link={"rate": "1gbit"}).prediction
    assert prediction.bound_s < prediction.alpha_beta_s < 1.2 * prediction.bound_s


def test_delay_raises_the_prediction() -> None:
    fast, slow = plan().prediction, plan(link={"rate": "100mbit", "delay": "20ms"}).prediction
    assert slow.alpha_beta_s > fast.alpha_beta_s + 6 * 0.04
    assert slow.bound_s == fast.bound_s


@pytest.mark.parametrize(
    ("counts", "bucket_bytes", "buckets"),
    [
        ([], 1024, ()),
        ([10], 1024, (10,)),
        ([256, 256, 256], 1024, (256, 256, 256)),
        ([100, 200, 300], 1024, (300, 300)),
        ([100, 200, 300], 2**30, (600,)),
    ],
)
def test_buckets_close_when_they_have_reached_the_limit(
    counts: list[int], bucket_bytes: int, buckets: tuple[int, ...]
) -> None:
    assert fuse(counts, bucket_bytes) == buckets


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
    assert made.needs_netem
    for direction in made.directions:
        assert direction.delay_stage is not None
        assert direction.delay_stage.interface == direction.receiver.interface
    devices = [direction.delay_stage.device for direction in made.directions if direction.delay_stage]
    assert len(set(devices)) == 4
    assert any("ifb" in command for command in made.node("s0").ip_commands)


def test_plan_is_plain_data_and_the_same_every_time() -> None:
    assert plan().to_json() == plan().to_json()
