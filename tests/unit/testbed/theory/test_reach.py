"""Ranges: what lies in them, what does not and why."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan
from testbed.theory.reach import Expected, Reach, outside

REACH = Reach(
    num_workers=(2, 8), size_bytes=(65_536, 10**8), delay_s=(0.0, 0.02), rate_bps=(1e7, 1e9), channels=("tcp",)
)
EXPECTED = Expected(0.03, "validation", 98, REACH)
WORKLOAD = {"kind": "synthetic", "layers": ["4MB", "4MB"], "forward": "100ms", "backward": "200ms"}


def planned(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "workload": WORKLOAD, "link": {"rate": "1gbit"}, **keys}))


def beyond(**keys: Any) -> str:
    return "; ".join(outside(planned(**keys), EXPECTED))


def test_inside_there_is_nothing_to_say() -> None:
    assert beyond() == ""


def test_each_range_is_named_with_its_ends() -> None:
    assert "16 workers (2 to 8)" in beyond(workers=16)
    assert "really 100 ms from worker to worker (0 to 20 ms)" in beyond(link={"rate": "1gbit", "delay": "50ms"})
    assert "links of really 1e+04 Mbit/s (10 to 1000 Mbit/s)" in beyond(link={"rate": "10gbit"})
    assert "an exchange of 4,096 bytes" in beyond(workload={**WORKLOAD, "layers": ["4096B"]})
    assert "an exchange of 200,000,000 bytes" in beyond(workload={**WORKLOAD, "layers": ["200MB"]}, fusion="none")
    assert "channel udp (tcp)" in beyond(channel="udp")
    assert "lost" in beyond(link={"rate": "1gbit", "delay": "1ms", "loss": "1%"})
    assert "compression fp16" in beyond(compression="fp16")


@pytest.mark.parametrize("what", [{"jitter": "1ms"}, {"reorder": "20%"}, {"duplicate": "1%"}])
def test_what_makes_packets_late_or_double_is_outside(what: dict[str, str]) -> None:
    link = {"rate": "1gbit", "delay": "5ms", **what}
    assert beyond(link=link) == "jitter, or packets that are reordered or duplicated (none)"


def test_ranges_are_of_the_machine_not_of_virtual_time() -> None:
    assert beyond(link={"rate": "10gbit"}, dilation=10) == "", "really 1 Gbit/s"
    assert "really 40 ms" in beyond(link={"rate": "10gbit", "delay": "2ms"}, dilation=10)


@pytest.mark.parametrize("options", [{"send_buffer": "64KiB"}, {"receive_buffer": "64KiB"}, {"streams": 2}])
def test_options_of_a_channel_that_no_prediction_knows_are_named(options: dict[str, Any]) -> None:
    [name] = options
    assert beyond(channel={"kind": "tcp", **options}) == f"channel tcp with {name} (as they are unless given)"
    assert beyond(channel={"kind": "tcp", "congestion": "reno"}) == ""


def test_jobs_that_share_the_aggregating_switch_are_outside() -> None:
    """Nobody knows how much of the links they leave: an error was stated, and the time was the same without them."""
    tenants = {"kind": "in_network", "tenants": [{"workers": ["x0", "x1"]}]}
    keys: dict[str, Any] = {"topology": "dumbbell", "hosts": {"x0": {"at": "s0"}, "x1": {"at": "s1"}}}
    assert beyond(collective="in_network", **keys) == ""
    assert beyond(collective=tenants, **keys) == "other jobs at the aggregating switch (none)"


def test_hosts_that_are_held_to_a_share_of_the_cores_are_outside() -> None:
    slower: dict[str, Any] = {"link": {"rate": "10gbit"}, "dilation": 10}
    assert "host_cost: real, whose workers stop" in beyond(**slower, host_cost="real")
    assert beyond(hosts={"w0": {"cpu": 0.5}}) == "workers with a quota of CPU time (none)"
    assert beyond(hosts={"w0": {"memory": "1GiB"}}) == ""


def test_iterations_that_the_model_does_not_describe_are_outside(tmp_path: Path) -> None:
    assert "fusion priority, whose exchanges go on in the next forward pass" in beyond(fusion="priority")
    assert beyond(fusion="horovod_5ms") == "fusion time, whose buckets depend on when gradients become ready (none)"
    partial = {"kind": "in_network", "dataplane": "reference", "partial_after": "20ms"}
    assert beyond(collective=partial) == "collective.partial_after, whose sums leave without stragglers (none)"
    table = tmp_path / "slow_input.txt"
    table.write_text("# input_us=500000\nId Name Forward Backward Comm Size\n0 conv1 50000 50000 - 4000000\n")
    assert "input that is waited for" in beyond(workload={"kind": "replay", "trace": str(table)})


def test_without_a_comparison_only_what_none_covers_is_said() -> None:
    assert outside(planned(workers=16), None) == []
    assert outside(planned(compression="fp16"), None) != []


def test_a_hull_holds_both_and_survives_json() -> None:
    other = Reach.of(planned(workers=16, channel="udp", link={"rate": "100mbit", "delay": "50ms"}))
    both = REACH.joined(other)
    assert (both.lacking(REACH), both.lacking(other)) == ([], [])
    assert REACH.lacking(both) != []
    assert Reach.of_json(asdict(both)) == both
