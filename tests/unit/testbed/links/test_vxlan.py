from typing import Any

import pytest

from testbed.links.veth import End
from testbed.links.vxlan import Vxlan

DEVICE = Vxlan(interface="w2-eth0", mac="02:00:00:00:02:02", vni=1025, local="10.99.0.2", remote="10.99.0.1")
READ_BACK: dict[str, Any] = {
    "ifname": "w2-eth0",
    "linkinfo": {
        "info_kind": "vxlan",
        "info_data": {
            "id": 1025,
            "remote": "10.99.0.1",
            "local": "10.99.0.2",
            "port": 4789,
            "learning": False,
            "ttl": 64,
            "df": "set",
            "udp_csum": False,
        },
    },
}


def test_one_command_makes_an_end_in_the_node_s_namespace() -> None:
    assert DEVICE.command(End("w2-eth0", "02:00:00:00:02:02", 4711)) == (
        "link add name w2-eth0 address 02:00:00:00:02:02 netns 4711 type vxlan id 1025 local 10.99.0.2 "
        "remote 10.99.0.1 dstport 4789 nolearning noudpcsum df set ttl 64"
    )


def test_what_was_requested_is_no_difference() -> None:
    assert DEVICE.differences([{"ifname": "lo"}, READ_BACK]) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("id", 7),
        ("remote", "10.99.0.3"),
        ("local", None),
        ("port", 8472),
        ("learning", True),
        ("udp_csum", True),
        ("df", "unset"),
        ("ttl", 1),
    ],
)
def test_every_setting_is_read_back(setting: str, value: Any) -> None:
    information = {**READ_BACK["linkinfo"]["info_data"], setting: value}
    changed = {**READ_BACK, "linkinfo": {"info_kind": "vxlan", "info_data": information}}
    (line,) = DEVICE.differences([changed])
    assert line.startswith(f"w2-eth0: vxlan {setting} is {value}, requested ")


def test_another_device_of_that_name_is_a_difference() -> None:
    veth = {"ifname": "w2-eth0", "linkinfo": {"info_kind": "veth"}}
    assert DEVICE.differences([veth]) == ["w2-eth0: is veth, requested vxlan"]
    assert DEVICE.differences([]) == ["w2-eth0: is no device, requested vxlan"]
