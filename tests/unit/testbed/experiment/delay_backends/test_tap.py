"""What the relay is given, its counters, the read-back, and that plan and program agree on every name."""

import struct
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.delay_backends.base import port_argument
from testbed.experiment.delay_backends.tap import (
    RelayParameters,
    Tap,
    TapStage,
    parse_counters,
)
from testbed.experiment.link import LinkSpec
from testbed.system.native.build import program

REQUESTED = {"rate": "1gbit", "delay": "10ms", "loss": "1%", "queue": "300kB", "ecn": "100kB", "duplicate": 0.001}
NUM_BUCKETS = 896


def stage(link: dict[str, Any] | None = None, *, seed: int = 1, index: int = 2) -> TapStage:
    return Tap().stage(LinkSpec.model_validate(link or REQUESTED), interface="s0-eth1", index=index, seed=seed)


def state(**changes: Any) -> dict[str, Any]:
    device = {"info_kind": "tun", "info_data": {"type": "tap", "vnet_hdr": True}}
    return {
        "addresses": [{"ifname": "s0-eth1", "linkinfo": device}],
        "relay": {2: stage().parameters},
        **changes,
    }


def test_the_relay_is_given_everything_that_is_requested() -> None:
    assert stage().relay_argument() == (
        "2:rate_bps=1000000000.0,queue_bytes=300000.0,mark_bytes=100000.0,delay_ns=10000000.0,jitter_ns=0.0,"
        "uniform=0.0,loss_good=0.01,loss_bad=0.0,good_to_bad=0.0,bad_to_good=0.0,duplicate=0.001,reorder=0.0,"
        "seed=65539.0"
    )
    assert port_argument("w0-eth0", "02:00:00:00:00:01", "/proc/7/ns/net") == "w0-eth0,02:00:00:00:00:01,/proc/7/ns/net"


def test_bursts_and_kinds_of_jitter_reach_the_relay() -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": 0.01, "bad_to_good": 0.25, "loss_in_bad": 0.9}
    jitter = {"deviation": "1ms", "distribution": "uniform"}
    reported = stage({"delay": "5ms", "loss": bursts, "jitter": jitter, "reorder": "1%"}).parameters
    assert (reported.loss_good, reported.loss_bad, reported.good_to_bad, reported.bad_to_good) == (0, 0.9, 0.01, 0.25)
    assert (reported.jitter_ns, reported.uniform, reported.reorder, reported.mark_bytes) == (1e6, 1, 0.01, 0)


def test_every_direction_and_every_seed_draws_otherwise() -> None:
    assert len({stage(seed=seed, index=index).parameters.seed for seed in range(4) for index in range(4)}) == 16
    assert stage(seed=2**62).parameters.seed < 2**53, "a double holds it exactly"


@pytest.mark.parametrize(("delay", "refused"), [("0s", False), ("199us", True), ("200us", False), ("1s", False)])
def test_a_delay_that_a_program_cannot_be_woken_for_is_refused(delay: str, refused: bool) -> None:
    assert bool(Tap().unsupported(LinkSpec.model_validate({"delay": delay}))) is refused
    assert not Tap().unsupported(LinkSpec.model_validate({"delay": delay, "best_effort": True}))


def test_nothing_but_the_relay_is_needed() -> None:
    made = stage()
    assert not [*made.ip_commands(), *made.tc_commands(), *made.firewall_rules(), *made.daemon_arguments()]
    assert made.differences(state()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"addresses": []}, "is absent, requested a TAP device"),
        ({"addresses": [{"ifname": "s0-eth1", "linkinfo": {"info_kind": "veth"}}]}, "is veth"),
        (
            {"addresses": [{"ifname": "s0-eth1", "linkinfo": {"info_kind": "tun", "info_data": {"type": "tap"}}}]},
            "IFF_VNET_HDR",
        ),
        ({"relay": {}}, "nobody relays"),
        ({"relay": {2: replace(stage().parameters, rate_bps=9e8)}}, "rate_bps is 9e+08, requested 1e+09"),
        ({"relay": {2: replace(stage().parameters, seed=7.0)}}, "seed is 7, requested 65539"),
    ],
)
def test_every_difference_is_noticed(changes: dict[str, Any], words: str) -> None:
    (found,) = stage().differences(state(**changes))
    assert words in found
    assert found.startswith("s0-eth1: ")


def test_the_counters_of_the_program_are_understood() -> None:
    late = [0] * NUM_BUCKETS
    late[20] = 3
    reported = [float(number) for number in range(len(fields(RelayParameters)))]
    rows = [
        struct.pack(f"=11Q{NUM_BUCKETS}Q{len(reported)}d", *range(11 * row, 11 * row + 11), *late, *reported)
        for row in (0, 1)
    ]
    counters = parse_counters(b"".join(rows))
    assert list(counters) == [0, 1]
    second = counters[1]
    assert (second.num_packets, second.num_bytes, second.num_drops) == (11, 12, 13)
    assert (second.num_marked, second.num_lost, second.num_duplicated, second.num_reordered) == (15, 16, 17, 18)
    assert (second.num_failed, second.backlog_bytes) == (19, 20)
    assert second.rate_bps == second.parameters.rate_bps, "a link that has changed is judged by the rate in force"
    assert second.parameters.argument(1) == "1:" + ",".join(
        f"{field.name}={value!r}" for field, value in zip(fields(RelayParameters), reported, strict=True)
    )
    assert (second.delay.num_dropped, second.delay.num_marked) == (19, 15)
    assert second.delay.since(counters[0].delay).num_marked == 11
    assert second.delay.since(counters[0].delay).overdue_s == pytest.approx(11e-9)
    assert second.delay.late_s(1.0) == pytest.approx(21e-6)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("0:rate_bps=1", "a parameter is missing"),
        ("0:rate=1", "a parameter is unknown"),
        ("first:rate_bps=1", "does not begin with a number"),
        (stage(index=7).relay_argument(), "no direction of that index"),
        (stage(index=0).relay_argument().replace("0.01", "1.01"), "out of range"),
        (stage(index=0).relay_argument() + ",seed=1.0", "given twice"),
    ],
)
def test_the_program_refuses_what_it_does_not_understand_before_it_makes_anything(
    tmp_path: Path, broken: str, words: str
) -> None:
    nowhere = port_argument("t0", "02:00:00:00:00:01", "/nonexistent")
    argv = [
        str(program("relay_tap")),
        str(tmp_path / "counters"),
        nowhere,
        broken,
        nowhere,
        stage(index=1).relay_argument(),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "direction 0" in done.stderr


def test_the_program_knows_every_parameter_the_plan_has(tmp_path: Path) -> None:
    ends = []
    for index in range(2):
        ends += [port_argument("t0", "02:00:00:00:00:01", "/nonexistent"), stage(index=index).relay_argument()]
    argv = [str(program("relay_tap")), str(tmp_path / "counters"), *ends]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "relay_tap: /nonexistent: No such file or directory\n")
