"""Rules and arguments letter by letter, the read-back, and the counters of the C program."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testbed.experiment.delay_backends.base import DelayCounters
from testbed.experiment.delay_backends.nfqueue import (
    Nfqueue,
    NfqueueStage,
    parse_counters,
    parse_parameters,
    parse_queues,
)
from testbed.experiment.link import LinkSpec

LINK = LinkSpec.model_validate({"rate": "1gbit", "delay": "10ms"})
SERVED = "    2  31337     3 1     0     0     0      250  1\n"


def stage(link: LinkSpec = LINK, *, seed: int = 1, index: int = 2) -> NfqueueStage:
    return Nfqueue().stage(link, interface="s0-eth1", index=index, seed=seed)


def state(**changes: Any) -> dict[str, Any]:
    rules = ["-A PREROUTING -i s0-eth1 -j NFQUEUE --queue-num 2", "-A PREROUTING -i s0-eth10 -j NFQUEUE --queue-num 9"]
    return {"firewall": rules, "queues": parse_queues(SERVED), **changes}


def test_the_rule_has_no_bypass_and_the_queue_holds_twice_the_bandwidth_delay_product() -> None:
    assert stage().firewall_rules() == ["-A PREROUTING -i s0-eth1 -j NFQUEUE --queue-num 2"]
    (argument,) = stage().daemon_arguments()
    assert argument.startswith("2:max_packets=3333.0,delay_ns=10000000.0,jitter_ns=0.0,")
    assert argument.endswith(",reorder=0.0,seed=65539.0")
    assert list(stage().tc_commands()) == list(stage().ip_commands()) == []


def test_every_direction_and_every_seed_draws_other_losses() -> None:
    lossy = LinkSpec.model_validate({"loss": "1%"})
    seeds = {stage(lossy, seed=seed, index=index).parameters.seed for seed in range(4) for index in range(4)}
    assert len(seeds) == 16
    assert stage(lossy).parameters.loss_good == 0.01
    assert stage(lossy, seed=2**32 - 1).parameters.seed == (2**32 - 1) * 65_537 + 2


def test_bursts_jitter_and_reordering_are_reported_as_requested() -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": 0.01, "bad_to_good": 0.25, "loss_in_good": 0.001}
    jitter = {"deviation": "1ms", "distribution": "uniform"}
    reported = stage(
        LinkSpec.model_validate({"delay": "5ms", "jitter": jitter, "loss": bursts, "reorder": "2%"})
    ).parameters
    assert (reported.good_to_bad, reported.bad_to_good, reported.loss_bad, reported.loss_good) == (
        0.01,
        0.25,
        1.0,
        0.001,
    )
    assert (reported.delay_ns, reported.jitter_ns, reported.uniform, reported.reorder) == (5e6, 1e6, 1.0, 0.02)


def test_parameters_in_force_that_differ_are_noticed() -> None:
    requested = stage()
    assert requested.parameter_differences(replace(requested.parameters, max_packets=5000.0)) == []
    assert requested.parameter_differences(replace(requested.parameters, delay_ns=2e7)) == [
        "s0-eth1: delay_ns of its delay line is 2e+07, requested 1e+07"
    ]


def test_what_was_requested_reads_back_without_difference() -> None:
    assert stage().differences(state()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"firewall": []}, "absent"),
        ({"firewall": ["-A PREROUTING -i s0-eth1 -j NFQUEUE --queue-num 2 --queue-bypass"]}, "--queue-bypass"),
        ({"firewall": ["-A PREROUTING -i s0-eth1 -j NFQUEUE --queue-num 7"]}, "requested -A PREROUTING"),
        ({"firewall": ["-A PREROUTING -i s0-eth1 -j ACCEPT", *state()["firewall"]]}, "-j ACCEPT"),
        ({"queues": {}}, "nobody serves queue 2"),
        ({"queues": parse_queues(SERVED.replace("3 1 ", "3 2 "))}, "copy mode of its queue is 2"),
    ],
)
def test_every_difference_is_noticed(changes: dict[str, Any], words: str) -> None:
    (found,) = stage().differences(state(**changes))
    assert words in found
    assert found.startswith("s0-eth1: ")


def test_the_kernels_table_of_queues_is_understood() -> None:
    text = "    0   4242     7 1     0     5     2    99999  1\n    3  4242     0 2 65531     0     0        1  1\n"
    assert parse_queues(text) == {
        0: {"waiting": 7, "copy_mode": 1, "num_dropped": 7},
        3: {"waiting": 0, "copy_mode": 2, "num_dropped": 0},
    }


def counters_file(*rows: dict[str, Any]) -> bytes:
    data = b""
    for row in rows:
        late = [0] * 896
        for bucket, count in row["late"].items():
            late[bucket] = count
        data += struct.pack(
            "=5Q896Q10d", row["queue"], sum(late), row["lost"], 7, row.get("overdue_ns", 0), *late, *range(10)
        )
    return data


def test_counters_give_packets_losses_drops_and_lateness() -> None:
    before, after = (
        parse_counters(
            counters_file({"queue": 2, "lost": lost, "late": late, "overdue_ns": 10**8 * lost}),
            {2: {"num_dropped": lost}} if lost else {},
        )[2]
        for lost, late in ((0, {10: 5}), (3, {10: 103, 63: 1, 64: 1}))
    )
    between = after.since(before)
    assert (between.num_packets, between.num_lost, between.num_dropped, between.num_reordered) == (100, 3, 3, 0)
    assert between.overdue_s == pytest.approx(0.3)
    assert parse_parameters(counters_file({"queue": 2, "lost": 0, "late": {}}))[2].seed == 9
    assert between.late_s(0.5) == pytest.approx(11e-6)
    assert between.late_s(0.99) == pytest.approx(64e-6)
    assert between.late_s(1.0) == pytest.approx(66e-6)


def test_lateness_of_no_packets_is_not_a_number() -> None:
    nothing = DelayCounters(num_packets=0, num_lost=0, num_dropped=0, late=np.zeros(896, dtype=np.uint64))
    assert nothing.late_s(0.99) is None


@pytest.mark.parametrize("late_us", [0, 1, 63, 64, 65, 127, 128, 1000, 12_345, 10**6, 2**31 - 1])
def test_buckets_are_at_most_three_percent_wide(late_us: int) -> None:
    shift = max(0, late_us.bit_length() - 6)
    bucket = late_us if late_us < 64 else shift * 32 + (late_us >> shift)  # bucket_of() of delay_nfqueue.c
    late = np.zeros(896, dtype=np.uint64)
    late[bucket] = 1
    shown_s = DelayCounters(num_packets=1, num_lost=0, num_dropped=0, late=late).late_s(1.0)
    assert shown_s is not None
    assert late_us * 1e-6 < shown_s <= (1.0321 * late_us + 1) * 1e-6
