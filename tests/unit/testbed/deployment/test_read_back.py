"""What the kernel says of a node, compared with what the plan requested: one that says nothing, one that says more."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from testbed.deployment.read_back import node_differences
from testbed.experiment.experiment import validate
from testbed.plan.direction import Direction
from testbed.plan.nodes import NodePlan
from testbed.plan.plan import make_plan

PLAN = make_plan(validate({"name": "t", "workers": 2, "packet_mode": "mtu"}))
# Shapers and delay lines compare themselves; see their own tests.
DIRECTIONS: Sequence[Direction] = [replace(each, shaper=None, delay_stage=None) for each in PLAN.directions]
WORKER = PLAN.node("w0")


def as_requested(node: NodePlan) -> dict[str, Any]:
    """What `ip -j -d` and netlink say of a worker whose every setting was taken."""
    ((interface, address),) = node.addresses.addresses
    (sends,) = [each for each in DIRECTIONS if each.sender.node == node.name]
    table = {"metrics": [{"congestion": PLAN.congestion}]}
    return {
        "sysctls": {**node.sysctls, **node.sysctls_if_known},
        "disconnected": [],
        "qdiscs": [],
        "classes": {},
        "addresses": [
            {
                "ifname": interface,
                "flags": ["UP"],
                "mtu": PLAN.experiment.mtu,
                "gso_max_segs": sends.gso_max_segments,
                "addr_info": [{"local": address.partition("/")[0]}],
            }
        ],
        "neighbours": [
            {"dst": each.address, "lladdr": each.mac, "dev": each.interface, "state": ["PERMANENT"]}
            for each in node.addresses.neighbours
        ],
        "routes": [
            {"dst": each.destination, "gateway": each.gateways[0].address, "dev": each.gateways[0].interface, **table}
            if each.gateways
            else {"dst": each.destination, "dev": each.interface, **table}
            for each in node.addresses.routes
        ],
    }


def differences(state: dict[str, Any], *, down: Sequence[tuple[str, str]] = ()) -> list[str]:
    return node_differences(WORKER, state, DIRECTIONS, down=down, mtu=PLAN.experiment.mtu, congestion=PLAN.congestion)


def test_what_was_taken_is_not_mentioned() -> None:
    assert differences(as_requested(WORKER)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state["addresses"].clear(), "w0-eth0: absent"),
        (lambda state: state["addresses"][0]["flags"].clear(), "w0-eth0: is not up"),
        (lambda state: state["addresses"][0].update(mtu=9000), "w0-eth0: mtu is 9000, requested 1500"),
        (lambda state: state["addresses"][0].update(gso_max_segs=65535), "gso_max_segs is 65535, requested 1"),
        (lambda state: state["addresses"][0]["addr_info"].append({"local": "10.9.9.9"}), "requested only 10."),
        (lambda state: state["neighbours"].clear(), "is absent, not permanent"),
        (lambda state: state["neighbours"].append({"dst": "10.9.9.9"}), "a neighbour 10.9.9.9"),
        (lambda state: state["routes"].clear(), "w0: no "),
        (lambda state: state["routes"].append({"dst": "10.9.0.0/16"}), "a route to 10.9.0.0/16 that nobody requested"),
        (lambda state: state["routes"][0].update(metrics=[{"congestion": "reno"}]), "['reno'], requested cubic"),
        (
            lambda state: state["routes"][0].update(metrics=[{"congestion": "cubic", "rto_min": 800}]),
            "least timeout on the route to 10.0.0.0/30 is [800] ms, requested none",
        ),
        (lambda state: state["sysctls"].update({next(iter(WORKER.sysctls)): "77"}), "is 77, requested"),
        (lambda state: state["disconnected"].append("w0-eth0"), "s0 -> w0: is down, requested the other"),
    ],
)  # fmt: skip
def test_each_setting_that_is_not_as_requested_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    state = as_requested(WORKER)
    change(state)
    assert any(said in line for line in differences(state)), differences(state)


def test_timeouts_of_slower_time_are_read_back() -> None:
    """One that was not taken would make TCP repeat k times too soon."""
    slow = replace(WORKER, rto_min_ms=800)
    state = as_requested(WORKER)
    found = node_differences(slow, state, DIRECTIONS, down=(), mtu=PLAN.experiment.mtu, congestion=PLAN.congestion)
    assert len(found) == len(state["routes"])
    assert all("is [None] ms, requested 800" in line for line in found)


def test_a_setting_that_must_be_there_is_missed_and_one_of_newer_kernels_is_not() -> None:
    state = as_requested(WORKER)
    for key in WORKER.sysctls_if_known:
        del state["sysctls"][key]
    assert differences(state) == []
    first = next(iter(WORKER.sysctls))
    del state["sysctls"][first]
    (line,) = differences(state)
    assert line.startswith(f"w0: sysctl {first} is None")


def test_a_link_that_is_taken_down_must_be_down() -> None:
    state = as_requested(WORKER)
    assert differences(state, down=[("s0", "w0")]) == ["s0 -> w0: is up, requested the other"]
    state["disconnected"].append("w0-eth0")
    assert differences(state, down=[("s0", "w0")]) == []
