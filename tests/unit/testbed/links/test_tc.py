"""The tc commands of a link, letter by letter, and the read-back that must notice every difference."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.links.netlink import HtbClass
from testbed.links.spec import LinkSpec
from testbed.links.tc import CLASS_HANDLE, QUANTUM_BYTES, Shaper, delay_stage

SHAPER = Shaper(interface="w0-eth0", rate_bps=1e9, queue_bytes=1_000_000)


def asked_qdiscs() -> list[dict[str, Any]]:
    return [
        {"kind": "htb", "handle": "1:", "root": True, "options": {"default": "0x1"}},
        {"kind": "bfifo", "handle": "10:", "parent": "1:1", "options": {"limit": 1_000_000}},
    ]


def asked_class(**changes: Any) -> HtbClass:
    asked = HtbClass(
        handle=CLASS_HANDLE,
        rate_bps=1e9,
        ceil_bps=1e9,
        burst_bytes=15_000.0,
        cburst_bytes=15_000.0,
        quantum_bytes=QUANTUM_BYTES,
        num_bytes=0,
        num_packets=0,
        num_drops=0,
        num_overlimits=0,
        backlog_bytes=0,
    )
    return replace(asked, **changes)


def test_commands_shape_with_a_burst_of_a_tenth_of_a_millisecond() -> None:
    assert SHAPER.commands() == [
        "qdisc add dev w0-eth0 root handle 1: htb default 1",
        (
            "class add dev w0-eth0 parent 1: classid 1:1 htb "
            "rate 1000000000bit ceil 1000000000bit burst 15000b cburst 15000b quantum 60000"
        ),
        "qdisc add dev w0-eth0 parent 1:1 handle 10: bfifo limit 1000000",
    ]


def test_burst_never_falls_below_ten_packets() -> None:
    assert replace(SHAPER, rate_bps=10e6).burst_bytes == 15_000
    assert replace(SHAPER, rate_bps=10e9).burst_bytes == 125_000


def test_a_burst_that_tc_rounded_to_microseconds_is_no_difference() -> None:
    # Seen on a real kernel: 187,499 bytes at 5 Gbit/s came back as 186,840.
    shaper = replace(SHAPER, rate_bps=5e9)
    kept = asked_class(rate_bps=5e9, ceil_bps=5e9, burst_bytes=62_500 - 659.0, cburst_bytes=62_500 - 659.0)
    assert shaper.differences(asked_qdiscs(), [kept]) == []


def test_what_was_asked_reads_back_without_difference() -> None:
    assert SHAPER.differences(asked_qdiscs(), [asked_class()]) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate_bps": 0.99e9}, "rate"),
        ({"ceil_bps": 2e9}, "ceil"),
        ({"burst_bytes": 125_000.0}, "burst"),
        ({"cburst_bytes": 1_600.0}, "cburst"),
        ({"quantum_bytes": 200_000}, "quantum"),
        ({"handle": 0x10002}, "no htb class"),
    ],
)
def test_every_changed_parameter_of_the_class_is_noticed(changes: dict[str, Any], words: str) -> None:
    found = SHAPER.differences(asked_qdiscs(), [asked_class(**changes)])
    assert len(found) == 1
    assert words in found[0]
    assert "w0-eth0" in found[0]


def test_a_missing_or_other_qdisc_is_noticed() -> None:
    assert "root qdisc is absent" in SHAPER.differences([], [asked_class()])[0]
    qdiscs = asked_qdiscs()
    qdiscs[1]["options"]["limit"] = 15_000
    assert SHAPER.differences(qdiscs, [asked_class()]) == ["w0-eth0: queue is 15000 bytes, asked for 1000000"]
    qdiscs[1] = {"kind": "pfifo", "handle": "10:", "parent": "1:1", "options": {"limit": 1000}}
    assert SHAPER.differences(qdiscs, [asked_class()]) == ["w0-eth0: leaf qdisc is pfifo, asked for bfifo"]


def test_a_link_with_only_a_rate_has_no_delay_stage() -> None:
    assert delay_stage(LinkSpec.model_validate({"rate": "1gbit"}), interface="s0-eth0", device="ifb0") is None


def test_delay_stage_lies_at_the_receiver_and_holds_twice_the_bandwidth_delay_product() -> None:
    link = LinkSpec.model_validate({"rate": "1gbit", "delay": "10ms", "jitter": "1ms", "loss": "0.5%"})
    stage = delay_stage(link, interface="s0-eth0", device="ifb0")
    assert stage is not None
    assert stage.ip_commands() == ["link add ifb0 type ifb", "link set ifb0 up"]
    assert stage.limit_packets == int(2 * 1e9 / 8 * 0.014 / 1500)
    assert stage.commands()[-1] == (
        f"qdisc add dev ifb0 root handle 20: netem limit {stage.limit_packets} "
        "delay 10000us 1000us distribution normal loss random 0.5%"
    )
    assert "dev s0-eth0" in stage.commands()[1]


def test_netem_read_back_notices_what_differs() -> None:
    link = LinkSpec.model_validate({"rate": "100mbit", "delay": "10ms", "loss": "1%"})
    stage = delay_stage(link, interface="s0-eth0", device="ifb0")
    assert stage is not None
    root = {
        "kind": "netem",
        "root": True,
        "options": {
            "limit": stage.limit_packets,
            "delay": {"delay": 0.01, "jitter": 0, "correlation": 0},
            "loss-random": {"loss": 0.01, "correlation": 0},
        },
    }
    assert stage.differences([root]) == []
    root["options"]["delay"]["delay"] = 0.02  # type: ignore[index]
    assert stage.differences([root]) == ["ifb0: netem delay is 0.02, asked for 0.01"]
    assert stage.differences([]) == ["ifb0: root qdisc is absent, asked for netem"]
