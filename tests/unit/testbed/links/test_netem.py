"""The netem stage, command by command, and the read-back that must notice every difference."""

from typing import Any

from testbed.links.netem import netem_stage
from testbed.links.spec import LinkSpec


def test_the_stage_lies_at_the_receiver_and_holds_twice_the_bandwidth_delay_product() -> None:
    link = LinkSpec.model_validate({"rate": "1gbit", "delay": "10ms", "jitter": "1ms", "loss": "0.5%"})
    stage = netem_stage(link, interface="s0-eth0", index=0, seed=1)
    assert stage.ip_commands() == ["link add ifb0 type ifb", "link set ifb0 up"]
    assert stage.max_packets == int(2 * 1e9 / 8 * 0.014 / 1500)
    assert stage.tc_commands()[-1] == (
        f"qdisc add dev ifb0 root handle 20: netem limit {stage.max_packets} "
        "delay 10000us 1000us distribution normal loss random 0.5%"
    )
    assert "dev s0-eth0" in stage.tc_commands()[1]


def test_read_back_notices_what_differs() -> None:
    link = LinkSpec.model_validate({"rate": "100mbit", "delay": "10ms", "loss": "1%"})
    stage = netem_stage(link, interface="s0-eth0", index=3, seed=1)
    root: dict[str, Any] = {
        "kind": "netem",
        "dev": "ifb3",
        "root": True,
        "options": {
            "limit": stage.max_packets,
            "delay": {"delay": 0.01, "jitter": 0, "correlation": 0},
            "loss-random": {"loss": 0.01, "correlation": 0},
        },
    }
    assert stage.differences({"qdiscs": [root]}) == []
    root["options"]["delay"]["delay"] = 0.02
    assert stage.differences({"qdiscs": [root]}) == ["ifb3: netem delay is 0.02, asked for 0.01"]
    assert stage.differences({"qdiscs": [root | {"dev": "ifb4"}]}) == ["ifb3: root qdisc is absent, asked for netem"]
