"""The tc commands of a link, letter by letter, and the read-back that must notice every difference."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.links.htb import CLASS_HANDLE, QUANTUM_BYTES, Shaper
from testbed.system.netlink import HtbClass


def shaper(rate_bps: float, real_bps: float | None = None) -> Shaper:
    return Shaper.of(interface="w0-eth0", rate_bps=rate_bps, queue_bytes=1_000_000, real_bps=real_bps)


SHAPER = shaper(1e9)


def requested_qdiscs() -> list[dict[str, Any]]:
    return [
        {"kind": "htb", "handle": "1:", "root": True, "options": {"default": "0x1"}},
        {"kind": "bfifo", "handle": "10:", "parent": "1:1", "options": {"limit": 1_000_000}},
    ]


def requested_class(**changes: Any) -> HtbClass:
    requested = HtbClass(
        handle=CLASS_HANDLE,
        rate_bps=1e9,
        ceil_bps=1e9,
        burst_bytes=12_500.0,
        cburst_bytes=12_500.0,
        quantum_bytes=QUANTUM_BYTES,
        num_bytes=0,
        num_packets=0,
        num_drops=0,
        num_overlimits=0,
        backlog_bytes=0,
    )
    return replace(requested, **changes)


def test_commands_shape_with_a_burst_of_a_tenth_of_a_millisecond() -> None:
    assert SHAPER.commands() == [
        "qdisc add dev w0-eth0 root handle 1: htb default 1",
        (
            "class add dev w0-eth0 parent 1: classid 1:1 htb "
            "rate 1000000000bit ceil 1000000000bit burst 12500b cburst 12500b quantum 60000"
        ),
        "qdisc add dev w0-eth0 parent 1:1 handle 10: bfifo limit 1000000",
    ]


def test_a_burst_is_a_tenth_of_a_millisecond_or_one_packet() -> None:
    assert [shaper(rate_bps).burst_bytes for rate_bps in (1e6, 1e8, 1e9, 10e9)] == [1514, 1514, 12_500, 125_000]


def test_a_burst_is_the_same_bytes_however_slow_time_runs() -> None:
    at_once = [shaper(rate_bps).burst_bytes for rate_bps in (1e9, 5e9, 10e9)]
    for dilation in (2, 4, 100):
        assert [shaper(rate, real_bps=rate / dilation).burst_bytes for rate in (1e9, 5e9, 10e9)] == at_once
    assert shaper(100e9, real_bps=2e9).burst_bytes == 125_000, "10 us of the link, not a whole bucket's message"
    assert shaper(100e9, real_bps=25e9).burst_bytes == 312_500, "what the kernel needs at that rate"


def test_a_burst_that_tc_rounded_to_microseconds_is_no_difference() -> None:
    # Seen on a real kernel: 187,499 bytes at 5 Gbit/s came back as 186,840.
    whole = shaper(5e9)
    kept = requested_class(rate_bps=5e9, ceil_bps=5e9, burst_bytes=62_500 - 659.0, cburst_bytes=62_500 - 659.0)
    assert whole.differences(requested_qdiscs(), [kept]) == []


def test_what_was_requested_reads_back_without_difference() -> None:
    assert SHAPER.differences(requested_qdiscs(), [requested_class()]) == []


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
    found = SHAPER.differences(requested_qdiscs(), [requested_class(**changes)])
    assert len(found) == 1
    assert words in found[0]
    assert "w0-eth0" in found[0]


def test_a_missing_or_other_qdisc_is_noticed() -> None:
    assert "root qdisc is absent" in SHAPER.differences([], [requested_class()])[0]
    qdiscs = requested_qdiscs()
    qdiscs[1]["options"]["limit"] = 15_000
    assert SHAPER.differences(qdiscs, [requested_class()]) == ["w0-eth0: queue is 15000 bytes, requested 1000000"]
    qdiscs[1] = {"kind": "pfifo", "handle": "10:", "parent": "1:1", "options": {"limit": 1000}}
    assert SHAPER.differences(qdiscs, [requested_class()]) == ["w0-eth0: leaf qdisc is pfifo, requested bfifo"]
