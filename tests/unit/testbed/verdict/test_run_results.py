"""A run that ended before its workers began has a summary all the same, and makes nothing up."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.cache import Mode
from testbed.calibration.tolerances import Calibration, Measurement
from testbed.experiment.experiment import validate
from testbed.hosts.base import Throttling
from testbed.measure.machine import MachineSample
from testbed.measure.observations import Barrier
from testbed.measure.sampler import LinkSample
from testbed.measure.snapshot import Snapshot
from testbed.plan.paths import Hop
from testbed.plan.plan import Plan, make_plan
from testbed.record.writer import RecordWriter
from testbed.verdict.facts import End, Quota
from testbed.verdict.run_results import RunResults
from testbed.verdict.summarize import summarize
from tests.facts import LINK


def nothing_yet(plan: Plan, directory: Path) -> RunResults:
    return RunResults(
        plan=plan,
        run_id="r1",
        started_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        epoch_s=7.0,
        writer=RecordWriter(directory),
        calibration=Calibration(mode=Mode.CLASS),
        setup="2 workers",
    )


def test_what_is_not_known_of_a_run_that_was_cut_short_is_none(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "x", "workers": 2, "compression": "top_k"}))
    found = nothing_yet(plan, tmp_path)
    summary = summarize(found.facts(End("failed", "a link is late")))
    assert (summary.outcome, summary.reasons) == ("failed", ["a link is late"])
    assert (summary.run_id, summary.started_at, summary.num_workers) == ("r1", "2026-01-02T03:04:05+00:00", 2)
    assert summary.spec_sha256 == plan.experiment.sha256()
    assert summary.setup == "2 workers"
    assert summary.checked.not_checked == []
    assert summary.links == summary.background == summary.aggregators == []
    assert summary.allreduce is summary.compression is summary.machine is summary.iteration_time_s is None


def snapshot(plan: Plan, at_s: float, class_bytes: Mapping[Hop, int]) -> Snapshot:
    """Counters of a run of which only its links are looked at."""
    samples = {
        (each.link, each.sender.node): LinkSample(
            at_s=at_s,
            read_from_s=at_s,
            link=each.link,
            node=each.sender.node,
            port=each.sender.interface,
            rate_bps=each.rate_bps,
            class_bytes=class_bytes.get(each.hop, 0),
            class_packets=0,
            drops=0,
            overlimits=0,
            backlog_bytes=0,
            interface_bytes=0,
        )
        for each in plan.directions
    }
    return Snapshot(
        samples=samples,
        connections={},
        delay_counters={},
        machine=replace(MachineSample.take(), at_s=at_s),
        throttling={},
        background=[],
        serving_delays_s={},
        at_s=at_s,
        took_s=0.0,
        own_throttling={},
    )


@pytest.mark.parametrize(("channel", "num_checked"), [("tcp", 6), ("udp", 3)])
def test_bytes_that_only_a_server_knows_of_are_not_held_against_a_run(
    tmp_path: Path, channel: str, num_checked: int
) -> None:
    """A lossy network: the server has sent 1.5 % more than its schedule says, acknowledgements among it."""
    keys = {"channel": channel, "collective": {"kind": "parameter_server", "servers": 1}, "link": {"loss": "1%"}}
    plan = make_plan(validate({"name": "x", "workers": 2, **keys}))
    found = nothing_yet(plan, tmp_path)
    num_iterations = plan.experiment.workload.num_iterations()
    expected = {each.hop: (each.expected_bytes or 0) * num_iterations for each in plan.directions}
    sent = expected | {hop: round(expected[hop] * 1.015) for hop in expected if hop[0] == "ps0"}
    found.observations.window["measure"] = snapshot(plan, 10.0, dict.fromkeys(expected, 0))
    found.observations.window["done"] = snapshot(plan, 20.0, sent)
    facts = found.facts(End("completed"))
    assert {(link.from_, link.to) for link in facts.links if link.to_server} == {("s0", "ps0")}
    summary = summarize(facts)
    assert summary.checked.num_bytes == num_checked
    assert any("bytes on the wire differ" in reason for reason in summary.reasons) == (channel == "tcp")
    said = [text for text in summary.checked.not_checked if text.startswith("bytes of 3 directions")]
    assert len(said) == (channel == "udp")


def test_what_probes_may_be_off_by_chance_is_of_the_super_frames_that_links_carry(tmp_path: Path) -> None:
    """Seen at 64 KiB, at 100 Mbit/s too, where none is longer than 8 segments: 10 % too little went unnoticed."""
    plan = make_plan(validate({"name": "x", "workers": 2, "link": {"rate": "100mbit"}}))
    found = nothing_yet(plan, tmp_path)
    found.observations.window["measure"] = snapshot(plan, 10.0, {})
    found.observations.window["done"] = snapshot(plan, 20.0, {})
    probe = {"link": "w0-s0", "node": "w0", "elapsed_s": 0.04, "due_bytes": 470e3, "sent_bytes": 423_000}
    found.writer.append_backlog([{**probe, "backlog_bytes": 9, "at_s": 8.0 + number} for number in range(4)])
    backlog = next(each.backlog for each in found.facts(End("completed")).links if each.from_ == "w0")
    assert backlog is not None
    assert backlog.num_probes == 4
    assert backlog.chance < 0.02


def test_verified_gradients_are_why_bytes_are_not_known(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "x", "workers": 2, "workload": {"kind": "training", "verify_gradients": True}}))
    found = nothing_yet(plan, tmp_path)
    found.observations.window["measure"] = snapshot(plan, 10.0, {})
    found.observations.window["done"] = snapshot(plan, 20.0, {})
    known = found.facts(End("completed"))
    assert known.verifies_gradients
    assert any("workload.verify_gradients gathers all gradients" in text for text in known.not_checked)


TREE = {"kind": "leaf_spine", "leaves": 2, "spines": 1}


@pytest.mark.parametrize(
    "keys",
    [
        {"collective": {"kind": "in_network", "dataplane": "ebpf"}},
        {"collective": {"kind": "in_network", "dataplane": "reference"}},
        {"collective": {"kind": "in_network", "at": "tree"}, "topology": TREE},
        {"collective": {"kind": "in_network", "at": "leaf"}, "topology": "dumbbell"},
        {"collective": {"kind": "parameter_server", "servers": 2}},
        {},
    ],
)
@pytest.mark.parametrize("compression", ["fp16", "random_k", "top_k"])
def test_what_compression_saves_is_what_workers_and_servers_send_less(
    tmp_path: Path, compression: str, keys: dict[str, Any]
) -> None:
    made, without = (make_plan(validate({"name": "x", "compression": kind, **keys})) for kind in (compression, "none"))
    num_iterations = made.experiment.workload.num_iterations()
    carried = {each.hop: (each.expected_bytes or 0) * num_iterations for each in made.directions}
    found = nothing_yet(made, tmp_path)
    found.observations.window["measure"] = snapshot(made, 10.0, dict.fromkeys(carried, 0))
    found.observations.window["done"] = snapshot(made, 20.0, carried)

    def sent_bytes(plan: Plan) -> int:
        return sum(each.expected_bytes or 0 for each in plan.directions if each.sender.node in plan.participants)

    ratio = found.facts(End("completed")).traffic_ratio
    assert ratio == pytest.approx(sent_bytes(made) / sent_bytes(without), rel=1e-3)
    assert ratio == pytest.approx(made.sent_bytes / made.uncompressed_bytes, rel=1e-3)


def test_what_hosts_spend_is_known_of_the_spec(tmp_path: Path) -> None:
    for host_cost in ("faster", "real"):
        keys = {"workload": "synthetic", "dilation": 4, "host_cost": host_cost}
        found = nothing_yet(make_plan(validate({"name": "x", "workers": 2, **keys})), tmp_path / host_cost)
        assert found.facts(End("failed", "a link is late")).host_cost == host_cost


@pytest.mark.parametrize("fusion", ["layers", "priority"])
def test_an_aggregator_is_as_far_away_as_delays_were_measured(tmp_path: Path, fusion: str) -> None:
    keys: dict[str, Any] = {"collective": "in_network", "fusion": fusion, "link": {"rate": "1gbit", "delay": "5ms"}}
    plan = make_plan(validate({"name": "x", "workers": 4, **keys}))
    found = nothing_yet(plan, tmp_path)
    measured = [
        Measurement(
            link=each.link,
            sender=each.sender.node,
            receiver=each.receiver.node,
            link_class="c0",
            delay_s=1.1 * each.delay_s,
            delay_attempts_s=(1.1 * each.delay_s,),
            goodput_bps=each.rate_bps,
            rate_bps=each.rate_bps,
            rate_of=each.name,
            congestion="cubic",
            rate_attempts_bps=(each.rate_bps,),
        )
        for each in plan.directions
    ]
    found.calibration = Calibration(mode=Mode.CLASS, links=measured)
    prediction = found.facts(End("completed")).prediction
    assert prediction is not None
    assert prediction.latency_s == pytest.approx(5.5e-3)


def test_rates_from_the_cache_are_not_called_measured_for_this_run(tmp_path: Path) -> None:
    found = nothing_yet(make_plan(validate({"name": "x", "workers": 2})), tmp_path)
    own = replace(LINK, rate_measured_on="w0 -> s0")
    of_class = replace(LINK, from_="w1", rate_measured_on="w0 -> s0")
    cached = replace(LINK, rate_measured_on="w0 -> s0", rate_from_cache=True)
    found.links = [own]
    assert found.facts(End("completed")).not_checked == []
    found.links = [own, of_class]
    (text,) = found.facts(End("completed")).not_checked
    assert text.startswith("rates of 1 directions one by one")
    found.links = [own, cached]
    (text,) = found.facts(End("completed")).not_checked
    assert text.startswith("rates of 1 directions for this run: they are from the cache of calibration")


def test_what_is_not_checked_is_said(tmp_path: Path) -> None:
    def not_checked(name: str, **keys: Any) -> list[str]:
        plan = make_plan(validate({"name": name, "workers": 2, **keys}))
        found = nothing_yet(plan, tmp_path / name)
        return summarize(found.facts(End("failed", "a link is late"))).checked.not_checked

    in_kernel = not_checked("ebpf", collective={"kind": "in_network", "dataplane": "ebpf"})
    assert in_kernel == ["run-queue delay of aggregators in the kernel: they have no threads"]
    assert not_checked("reference", collective={"kind": "in_network", "dataplane": "reference"}) == []
    slow = {"links": {"w0->s0": {"rate": "20mbit"}}}
    (text,) = not_checked("slow", **slow)
    assert text.startswith("rates of 1 directions while packets waited: below 21.93 Mbit/s a probe sees too few")
    assert not_checked("often", metrics={"interval": "200ms"}, **slow) == []
    synthetic: dict[str, Any] = {"workload": "synthetic", "link": {"rate": "50mbit"}}
    assert not_checked("undilated", **synthetic) == []
    (text,) = not_checked("dilated", **synthetic, dilation=4)
    assert text.startswith("rates of 4 directions while packets waited: below 87.71 Mbit/s")


def test_what_a_host_s_quota_did_is_in_its_own_time(tmp_path: Path) -> None:
    """A core of the spec is a thirtieth of one here, for thirty times as long."""
    keys = {"workload": "synthetic", "dilation": 30, "host_cost": "real"}
    found = nothing_yet(make_plan(validate({"name": "x", "workers": 2, **keys})), tmp_path)
    nothing = Throttling(num_periods=0, num_throttled=0, throttled_s=0.0)
    held = Throttling(num_periods=100, num_throttled=90, throttled_s=60.0)

    def counted(at_s: float, throttling: Throttling) -> Snapshot:
        return replace(snapshot(found.plan, at_s, {}), throttling={"w0": throttling})

    found.links = []
    found.observations.window |= {"measure": counted(10.0, nothing), "done": counted(100.0, held)}
    (quota,) = found.facts(End("completed")).quotas
    assert quota == Quota(name="w0", cpu_cores=1.0, throttled_share=0.9, throttled_s=2.0, waiting_share=None)


def test_a_command_takes_what_it_takes_and_not_what_reading_counters_does(tmp_path: Path) -> None:
    workload = {"kind": "command", "argv": ["true"]}
    found = nothing_yet(make_plan(validate({"name": "x", "workers": 1, "workload": workload})), tmp_path)
    found.links = []
    found.observations.window |= {"measure": snapshot(found.plan, 9.9, {}), "done": snapshot(found.plan, 12.1, {})}
    found.observations.barriers |= {"measure": Barrier(9.8, 10.0), "done": Barrier(12.0, 12.2)}
    found.observations.exits[0] = (0, 12.0)
    command = found.facts(End("completed")).command
    assert command is not None
    assert (command.start_s, command.time_s) == (3.0, 2.0)
    assert command.workers[0].time_s == 2.0


def test_a_switch_that_a_command_s_workers_have_lost_degrades_its_run(tmp_path: Path) -> None:
    workload = {"kind": "command", "argv": ["true"], "backend": "testbed"}
    found = nothing_yet(make_plan(validate({"name": "x", "workload": workload, "collective": "in_network"})), tmp_path)
    assert found.facts(End("completed")).aggregation_lost == []
    found.links = []
    found.aggregation_lost = ["another epoch has begun"]
    facts = found.facts(End("completed"))
    assert facts.aggregation_lost == ["another epoch has begun"]
    assert any("went around the ring" in reason for reason in summarize(facts).reasons)
