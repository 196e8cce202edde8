from typing import Any

import pytest

from testbed.links.bridge import Bridge

BRIDGE = Bridge(
    interface="s0-br", mac="02:00:01:00:00:00", ports=("s0-eth0",), entries=(("02:00:00:00:00:02", "s0-eth0"),)
)


def links() -> list[dict[str, Any]]:
    port: dict[str, Any] = {"learning": False, "flood": False, "mcast_flood": False, "bcast_flood": False}
    port["state"] = "forwarding"
    settings = {"stp_state": 0, "vlan_filtering": 0}
    return [
        {"ifname": "s0-br", "linkinfo": {"info_kind": "bridge", "info_data": settings}},
        {"ifname": "s0-eth0", "master": "s0-br", "linkinfo": {"info_slave_data": port}},
    ]


def table() -> list[dict[str, Any]]:
    return [
        {"mac": "02:00:00:00:00:02", "ifname": "s0-eth0", "state": "static"},
        {"mac": "02:00:01:00:00:00", "ifname": "s0-br", "state": "permanent"},
    ]


def test_what_was_requested_is_no_difference() -> None:
    assert BRIDGE.differences(links(), table()) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [("learning", "s0-eth0: learning is True"), ("bcast_flood", "s0-eth0: bcast_flood is True")],
)
def test_a_port_that_learns_or_floods_is_noticed(setting: str, words: str) -> None:
    found = links()
    found[1]["linkinfo"]["info_slave_data"][setting] = True
    assert BRIDGE.differences(found, table()) == [f"{words}, requested off"]


def test_entries_that_are_missing_or_learnt_are_noticed() -> None:
    learnt = {"mac": "02:00:00:00:09:02", "ifname": "s0-eth0", "state": ""}
    assert BRIDGE.differences(links(), [learnt]) == [
        "s0-br: 02:00:00:00:00:02 to s0-eth0 is absent, requested static",
        "s0-br: 02:00:00:00:09:02 to s0-eth0, which nobody requested",
    ]


def test_a_port_of_no_bridge_is_noticed() -> None:
    found = links()
    del found[1]["master"]
    assert "s0-eth0: its bridge is absent, requested s0-br" in BRIDGE.differences(found, table())


def test_a_spanning_tree_is_noticed() -> None:
    found = links()
    found[0]["linkinfo"]["info_data"]["stp_state"] = 1
    assert BRIDGE.differences(found, table()) == ["s0-br: stp_state is 1, requested 0"]


def test_a_port_that_does_not_forward_is_waited_for_and_noticed() -> None:
    found = links()
    assert BRIDGE.forwards(found)
    found[1]["linkinfo"]["info_slave_data"]["state"] = "disabled"
    assert not BRIDGE.forwards(found)
    assert BRIDGE.differences(found, table()) == ["s0-eth0: is disabled, requested forwarding"]
