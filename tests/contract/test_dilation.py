"""Every duration and every rate that a spec can say, and how each becomes real where time is dilated.

`QUANTITIES` is the list. A field that is added to the spec, or to what workers and aggregators receive, and that holds
a time or a rate fails here until it says where it is multiplied; each of those places is tested below.
"""

import re
import typing
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel, BeforeValidator

from testbed.control.worker import ServerConfiguration, StorageConfiguration, WorkerConfiguration
from testbed.errors import SpecError
from testbed.experiment.background.base import BACKGROUNDS
from testbed.experiment.clock import Clock, quantity_of
from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.delay_backends.nfqueue import NfqueueStage
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.fusion.base import FUSIONS
from testbed.experiment.link import UNSHAPED_BPS
from testbed.experiment.placements.base import PLACEMENTS
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.experiment.slowdowns.base import SLOWDOWNS
from testbed.experiment.storage.base import STORAGES
from testbed.experiment.switch_modes.base import SWITCH_MODES
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS
from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.experiment.workloads.base import WORKLOADS
from testbed.plan.plan import Plan, make_plan
from testbed.theory.predict import predict_iteration
from testbed.worker.aggregator import AggregatorConfiguration
from testbed.worker.tenant import TenantConfiguration
from transports.baselines.base import STACKS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import FREE, ChannelCosts, Costs
from transports.compression.base import COMPRESSORS
from transports.registry import Options, Registry
from transports.units import parse_rate_bps, parse_time_s

LINK = "how links are configured: Plan.real, and the nodes' commands"
TIMELINE = "moments and settings: LiveLinks"
FLOW = "arguments of the background's programs: Plan.real"
PROTOCOL = "an option of a protocol, which runs by switch_agg.clock"
WORKER = "the worker, where it waits"
CHOICE = "decides something in virtual time, and is never waited for"
DISK = "the storage node, where it waits for its disk"
WALL = "of the wall, and said so"
REFUSED = "its workload is refused where time is dilated"

QUANTITIES: Final = {
    "experiment.timeout_s": WORKER,
    "experiment.metrics.interval_s": WALL,
    "experiment.link.rate_bps": LINK,
    "experiment.link.delay_s": LINK,
    "experiment.link.jitter.deviation_s": LINK,
    "experiment.links.rate_bps": LINK,
    "experiment.links.delay_s": LINK,
    "experiment.links.jitter.deviation_s": LINK,
    "experiment.workers_per_host.link.rate_bps": LINK,
    "experiment.workers_per_host.link.delay_s": LINK,
    "experiment.workers_per_host.link.jitter.deviation_s": LINK,
    "fusion.time.cycle_s": WORKER,
    "fusion.merged.backward_s": CHOICE,
    "experiment.changes.at_s": TIMELINE,
    "experiment.changes.rate_bps": TIMELINE,
    "experiment.changes.delay_s": TIMELINE,
    "experiment.changes.jitter.deviation_s": TIMELINE,
    "experiment.changes.window_s": CHOICE,
    "experiment.changes.floor_bps": TIMELINE,
    "background.bulk.start_s": FLOW,
    "background.bulk.stop_s": FLOW,
    "background.constant.start_s": FLOW,
    "background.constant.stop_s": FLOW,
    "background.constant.rate_bps": FLOW,
    "background.on_off.start_s": FLOW,
    "background.on_off.stop_s": FLOW,
    "background.on_off.rate_bps": FLOW,
    "background.on_off.on_s": FLOW,
    "background.on_off.off_s": FLOW,
    "storage.full_read.disk_bps": DISK,
    "storage.partitioned_read.disk_bps": DISK,
    "storage.batch_read.disk_bps": DISK,
    "storage.disk_bps": DISK,
    "topology.file.links.link.rate_bps": LINK,
    "topology.file.links.link.delay_s": LINK,
    "topology.file.links.link.jitter.deviation_s": LINK,
    "topology.infragraph.hosts.link.rate_bps": LINK,
    "topology.infragraph.hosts.link.delay_s": LINK,
    "topology.infragraph.hosts.link.jitter.deviation_s": LINK,
    "topology.infragraph.links.link.rate_bps": LINK,
    "topology.infragraph.links.link.delay_s": LINK,
    "topology.infragraph.links.link.jitter.deviation_s": LINK,
    "workload.command.grace_s": REFUSED,
    "workload.training.pace.forward_s": WORKER,
    "workload.training.pace.backward_s": WORKER,
    "workload.training.pace.update_s": WORKER,
    "workload.replay.update_s": WORKER,
    "workload.synthetic.forward_s": WORKER,
    "workload.synthetic.backward_s": WORKER,
    "channel.udp.rate": PROTOCOL,
    "channel.udp.target": PROTOCOL,
    "collective.in_network.window.target_s": PROTOCOL,
    "collective.in_network.min_timeout_s": PROTOCOL,
    "collective.in_network.partial_after_s": PROTOCOL,
    "collective.auto.latency_s": CHOICE,
    "collective.auto.overhead_s": CHOICE,
    "collective.auto.addition_bps": CHOICE,
    "collective.auto.copy_bps": CHOICE,
    "collective.auto.shaper_late_s": CHOICE,
    "collective.auto.rate_bps": CHOICE,
    "worker.timeout_s": WORKER,
    "worker.launched_s": WALL,
    "worker.network_info.latency_s": CHOICE,
    "worker.network_info.rate_bps": CHOICE,
    "server.timeout_s": WORKER,
    "aggregator.jobs.straggler_timeout_s": PROTOCOL,
    "tenant.job.straggler_timeout_s": PROTOCOL,
}
AXES: Final[dict[str, Registry[Any]]] = {
    "background": BACKGROUNDS,
    "placement": PLACEMENTS,
    "topology": TOPOLOGIES,
    "runtime": RUNTIMES,
    "slowdown": SLOWDOWNS,
    "storage": STORAGES,
    "workload": WORKLOADS,
    "fusion": FUSIONS,
    "synchronisation": SYNCHRONISATIONS,
    "switch": SWITCH_MODES,
    "channel": CHANNELS,
    "collective": COLLECTIVES,
    "compression": COMPRESSORS,
    "stack": STACKS,
}
PARSERS: Final = {parse_time_s, parse_rate_bps}


def quantities(model: type[BaseModel], path: str) -> Iterator[str]:
    """The paths of its fields, and those of models in it, that hold a time or a rate: by type or by name."""
    for name, field in model.model_fields.items():
        annotation: Any = typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        if quantity_of(name) or any(found in PARSERS for found in parsers(annotation)):
            yield f"{path}.{name}"
        for inner in models(annotation):
            yield from quantities(inner, f"{path}.{name}")


def parsers(annotation: Any) -> Iterator[Any]:
    for part in typing.get_args(annotation):
        if isinstance(part, BeforeValidator):
            yield part.func
        yield from parsers(part)


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    """In it; values on an axis are looked at by the axis."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not issubclass(annotation, Options):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models(part)


def every_quantity() -> set[str]:
    found = set(quantities(Experiment, "experiment"))
    for axis, registry in AXES.items():
        for value in registry:
            found |= set(quantities(value, f"{axis}.{value.__module__.rpartition('.')[2]}"))
    for name, configured in (
        ("worker", WorkerConfiguration),
        ("server", ServerConfiguration),
        ("storage", StorageConfiguration),
        ("aggregator", AggregatorConfiguration),
        ("tenant", TenantConfiguration),
    ):
        found |= set(quantities(configured, name))
    return found


def test_every_duration_and_rate_is_listed_with_what_makes_it_real() -> None:
    found = every_quantity()
    assert found - set(QUANTITIES) == set(), "multiply it where time is dilated, and say here where"
    assert set(QUANTITIES) - found == set(), "there is no such field any more"


# How links and programs are configured -------------------------------------------------------------------------------

K: Final = 4


def planned(dilation: float = 1, **keys: Any) -> Plan:
    spec = {"name": "t", "workers": 2, "workload": "synthetic", "dilation": dilation, **keys}
    return make_plan(validate(spec), works=lambda name: name in {"nfqueue", "tap"})


def spec(k: int) -> dict[str, Any]:
    """The same network as it is said (k = 1), and as one would have to say it for a machine that is k times slower."""

    def rate(mbit: float) -> str:
        return f"{mbit / k:g}mbit"

    def time(ms: float) -> str:
        return f"{ms * k:g}ms"

    return {
        "link": {"rate": rate(8000), "delay": time(2), "jitter": time(0.25), "queue": "3MB"},
        "links": {"w1-s0": {"rate": rate(6000), "delay": time(3)}},
        "hosts": {"x0": {"at": "s0"}, "x1": {"at": "s0"}},
        "background": [
            {"kind": "constant", "from": "x0", "to": "x1", "rate": rate(40), "start": time(100), "stop": time(900)},
            {"kind": "on_off", "from": "x1", "to": "x0", "rate": rate(20), "on": time(10), "off": time(30)},
            {"kind": "bulk", "from": "x0", "to": "w1", "start": time(5)},
        ],
    }


BURST: Final = re.compile(r"burst \d+b cburst \d+b")
PACKETS: Final = re.compile(r"max_packets=[\d.]+")


def configured(plan: Plan) -> list[Any]:
    """What the kernel and programs are configured to, but for what is the same bytes, or packets, in any time."""
    nodes = [
        replace(
            node,
            rto_min_ms=None,
            ip_commands=tuple(re.sub(r" rto_min \d+ms", "", line) for line in node.ip_commands),
            tc_commands=tuple(BURST.sub("", line) for line in node.tc_commands),
            daemon_arguments=tuple(PACKETS.sub("", line) for line in node.daemon_arguments),
        )
        for node in plan.nodes
    ]
    real = plan.real()
    flows = [(flow.sink_arguments(), flow.source_arguments(seed=1)) for flow in real.background]
    return [nodes, flows, [(each.rate_bps, each.delay_s, each.requested.jitter_s) for each in real.directions]]


@pytest.mark.parametrize("backend", ["nfqueue", "tap"])
def test_a_dilated_network_is_given_what_the_slower_one_would_be(backend: str) -> None:
    def with_backend(keys: dict[str, Any]) -> dict[str, Any]:
        return {**keys, "link": {**keys["link"], "backend": backend}}

    dilated, manual = planned(K, **with_backend(spec(1))), planned(**with_backend(spec(K)))
    assert configured(dilated) == configured(manual)
    assert configured(dilated) != configured(planned(**with_backend(spec(1))))


def test_netem_is_given_real_delays() -> None:
    """It is the first choice where a kernel has it."""
    link = {"rate": "8gbit", "delay": "2ms", "jitter": "250us", "backend": "netem"}
    plan = planned(K, link=link, packet_mode="mtu")
    lines = [line for line in plan.node("s0").tc_commands if "netem" in line]
    assert lines
    assert all("delay 8000us 1000us" in line for line in lines)
    assert all("netem limit" in line for line in lines)


def test_a_run_that_is_not_dilated_is_given_what_it_always_was() -> None:
    plan = planned(**spec(1))
    assert plan.real().directions == plan.directions
    assert not any("rto_min" in line for node in plan.nodes for line in node.ip_commands)
    assert {node.rto_min_ms for node in plan.nodes} == {None}


def test_bytes_and_packets_are_the_same_in_slower_time() -> None:
    slow, fast = planned(K, **spec(1)), planned(**spec(1))
    for there, here in zip(slow.real().directions, fast.directions, strict=True):
        assert there.requested.queue_bytes == here.requested.queue_bytes
        assert there.shaper is not None
        assert here.shaper is not None
        assert there.shaper.burst_bytes == here.shaper.burst_bytes
        assert there.gso_max_segments == here.gso_max_segments
        assert there.expected_bytes == here.expected_bytes
        assert PACKETS.findall(str(slow.nodes)) == PACKETS.findall(str(fast.nodes))
    assert [node.sysctls for node in slow.nodes] == [node.sysctls for node in fast.nodes]


def test_tcp_repeats_as_much_later() -> None:
    plan = planned(K)
    routes = [line for node in plan.nodes for line in node.ip_commands if line.startswith("route")]
    assert routes
    assert all(line.endswith(" rto_min 800ms") or " rto_min 800ms nexthop" in line for line in routes)
    assert {node.rto_min_ms for node in plan.nodes} == {800}


def test_what_is_as_fast_as_the_machine_stays_that() -> None:
    plan = planned(100, workers=4, workers_per_host=2, collective="ring").real()
    inside = [each for each in plan.directions if each.requested.unshaped]
    assert inside
    assert all(each.shaper is not None and each.shaper.rate_bps == UNSHAPED_BPS for each in inside)
    assert Clock(100).virtual_bps(UNSHAPED_BPS) == UNSHAPED_BPS, "and is recognised when it is read back"


def test_a_change_while_the_run_goes_on_is_planned_in_virtual_and_reported_in_real_time() -> None:
    plan = planned(K, link={"rate": "8gbit", "delay": "1ms"})
    hop, direction = ("w0", "s0"), plan.directions[0]
    requested = plan.requested[hop]
    requested.spec = requested.spec.model_copy(update={"rate_bps": 4e9, "delay_s": 2e-3})
    changed = plan.changed(direction, requested)
    assert (changed.rate_bps, changed.delay_s) == (4e9, 2e-3)
    real = plan.clock.real(changed)
    assert real.shaper is not None
    assert (real.shaper.rate_bps, real.requested.delay_s) == (1e9, 8e-3)
    assert isinstance(real.delay_stage, NfqueueStage)
    assert real.delay_stage.parameters.delay_ns == 8e6


def test_decisions_and_predictions_are_of_virtual_time() -> None:
    keys: dict[str, Any] = {"link": {"rate": "1gbit", "delay": "1ms"}, "collective": "auto", "fusion": "merged"}
    plans = [planned(k, workers=4, **keys) for k in (1, 2, 16)]
    assert len({plan.buckets for plan in plans}) == 1
    assert len({tuple(each.kind for each in plan.chosen) for plan in plans}) == 1
    assert len({plan.prediction.bound_s for plan in plans}) == 1
    assert len({plan.latency_s for plan in plans}) == 1
    first, _, last = (plan.prediction.predicted_s for plan in plans)
    assert 0 < first - last < 0.05 * first, "but what the host adds to a message counts less"


@pytest.mark.parametrize("collective", ["ring", "recursive_doubling", "parameter_server", "in_network"])
def test_hosts_cost_a_tenth_in_time_that_runs_ten_times_slower(collective: str) -> None:
    """They are this machine's, and in virtual time it is ten times faster; links are as they were."""
    keys: dict[str, Any] = {"name": "t", "workers": 4, "collective": collective, "fusion": "none"}
    keys["workload"] = {"kind": "synthetic", "layers": ["64KiB"]}

    def predicted_s(costs: Costs, dilation: float) -> tuple[float, float]:
        plan = make_plan(validate({**keys, "dilation": dilation}), costs=costs)
        return plan.prediction.predicted_s, predict_iteration(plan).communication_s

    dear = Costs(
        host_latency_s=2e-3,
        message_s=3e-4,
        copy_s_per_byte=5e-9,
        addition_s_per_byte=2e-9,
        late_s=1e-3,
        shaper_late_s=6e-4,
    )
    tenth = Costs(
        host_latency_s=2e-4,
        message_s=3e-5,
        copy_s_per_byte=5e-10,
        addition_s_per_byte=2e-10,
        late_s=1e-4,
        shaper_late_s=6e-5,
    )
    free = replace(FREE, tcp=True)
    assert predicted_s(free, 1) == predicted_s(free, 10)
    # What hosts cost does not add up with links: while they work, shapers' bursts fill again.
    assert predicted_s(dear, 10) == pytest.approx(predicted_s(tenth, 1), rel=1e-9)
    assert predicted_s(dear, 1) > predicted_s(dear, 10) > predicted_s(free, 10)


def test_what_hosts_cost_is_scaled_whole() -> None:
    """Every cost is a time, or a time for each byte; a share is neither."""
    costs = Costs(
        host_latency_s=1e-4,
        message_s=2e-5,
        copy_s_per_byte=3e-9,
        addition_s_per_byte=1e-9,
        late_s=5e-5,
        shaper_late_s=6e-5,
        link_share=0.9,
        num_cores=2,
        channels=(ChannelCosts(channel="quic", message_s=3e-4, copy_s_per_byte=5e-8),),
        fitted_at="now",
    )
    assert Clock(10).virtual(costs) == Costs(
        host_latency_s=1e-4 / 10,
        message_s=2e-5 / 10,
        copy_s_per_byte=3e-9 / 10,
        addition_s_per_byte=1e-9 / 10,
        late_s=5e-5 / 10,
        shaper_late_s=6e-5 / 10,
        link_share=0.9,
        num_cores=2,
        channels=(ChannelCosts(channel="quic", message_s=3e-4 / 10, copy_s_per_byte=5e-8 / 10),),
        fitted_at="now",
    )
    as_they_are = {each.name for each in fields(Costs) if quantity_of(each.name) is None}
    assert as_they_are == {"link_share", "num_cores", "tcp", "channels", "fitted_at"}


def test_a_spec_in_slower_time_is_another_question_and_1_is_the_same_however_written() -> None:
    one, also_one, two = (planned(k).experiment for k in (1, 1.0, 2))
    assert one.sha256() == also_one.sha256() != two.sha256()
    assert one.dump()["dilation"] == 1
    assert validate(two.dump()) == two


# What cannot be dilated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workload": "training"}, r"^workload: training computes as fast as this machine"),
        ({"workload": {"kind": "command", "argv": ["true"]}}, r"^workload: command computes as fast"),
        ({"channel": "quic"}, r"^channel: quic has timers"),
        ({"hosts": {"w*": {"cpu": 0.5}}}, r"^hosts\.w\*\.cpu: cores are counted"),
        ({"link": {"rate": "2mbit"}}, r"^link\.rate: w0 -> s0 has 2mbit, .* at most dilation 2"),
        ({"links": {"s0->w1": {"rate": "3mbit"}}}, r"^links\.s0->w1\.rate: s0 -> w1"),
        ({"changes": [{"at": "1s", "link": "w0-s0", "rate": "2mbit"}]}, r"^changes\.0\.rate"),
        (
            {"link": {"rate": "1gbit", "delay": "30us", "backend": "nfqueue"}},
            r"^link\.delay: nfqueue .*120us is below .*\(real time, at dilation 4\)",
        ),
    ],
)
def test_what_cannot_be_had_in_slower_time_is_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(K, **keys)
    if "delay" not in str(keys):
        planned(1, **keys)


def test_a_delay_too_short_for_a_program_can_be_had_in_slower_time() -> None:
    link = {"rate": "1gbit", "delay": "60us", "backend": "nfqueue"}
    assert planned(K, link=link).delay_backend == "nfqueue"
    with pytest.raises(SpecError, match="200us to 1s"):
        planned(1, link=link)


def test_auto_is_decided_by_a_machine() -> None:
    with pytest.raises(SpecError, match=r"^dilation: auto is decided by what a machine carries"):
        planned("auto")  # type: ignore[arg-type]
    experiment = validate({"name": "t", "workload": "synthetic", "dilation": "auto"})
    plan = make_plan(experiment, chosen_dilation=(46, "time runs 46 times slower: because"))
    assert (plan.clock.dilation, plan.dilation_text) == (46, "time runs 46 times slower: because")
    assert plan.to_json()["dilation"] == 46
    assert plan.experiment.dilation == "auto", "the question is the same on every machine"


@pytest.mark.parametrize(
    ("congestion", "warned"), [("reno", False), ("dctcp", False), ("cubic", True), ("bbr", True), ("vegas", True)]
)
def test_congestion_controls_that_look_at_a_clock_are_warned_of(congestion: str, warned: bool) -> None:
    channel = {"kind": "tcp", "congestion": congestion}
    assert bool(planned(K, channel=channel).warnings) == warned
    assert planned(1, channel=channel).warnings == []
    assert planned(K, channel="udp").warnings == []


# Protocols run by a clock of their own -------------------------------------------------------------------------------

ROOT: Final = Path(__file__).parents[2]
PROTOCOLS: Final = (
    *(ROOT / "transports/channels/_udp").glob("*.py"),
    *(ROOT / "switch_agg" / name for name in ("client.py", "driver.py", "worker.py", "aggregator.py", "core.py")),
    *(ROOT / "switch_agg" / name for name in ("round_trip.py", "window.py", "status.py", "__main__.py")),
)


def test_protocols_read_no_clock_but_theirs() -> None:
    """One that did would have timers that nobody stretches: no number would show it."""
    reads = re.compile(r"time\.(monotonic|time|perf_counter)\w*\(|clock: Callable.*= time\.")
    for path in PROTOCOLS:
        assert not reads.findall(path.read_text()), path
    native = (ROOT / "switch_agg/native/worker.c").read_text()
    assert native.count("clock_gettime") == 1
    assert native.count("* r->dilation") == 2, "both of its waits"
    assert native.count("nanosleep(") + native.count("ppoll(") == 2


def test_the_udp_channels_engine_goes_by_the_protocols_time() -> None:
    """Its parts get it as an argument; the driver reads the machine's clock in one place and waits in one."""
    folder = ROOT / "transports/channels/_udp"
    for part in folder.glob("*.h"):
        assert "clock_gettime" not in part.read_text(), part
    engine = (folder / "udp.c").read_text()
    assert engine.count("clock_gettime(") == engine.count("* 1e-9") == engine.count("* 1e9") == 1
    assert "machine_ns * 1e-9 / e->dilation" in engine
    assert engine.count("ppoll(") - engine.count("/* ppoll(2)") == 1
    awaits = re.findall(r"await\(polled.*", engine)
    assert len(awaits) == 3
    assert all("* e->dilation" in line or "machine_s" in line for line in awaits), awaits
    assert all("e->dilation" in line or "0.0" in line for line in re.findall(r" set_alarm\(e->.*", engine))
    called = re.findall(
        r"self\._library\.(?:wait_readable|set_alarm)\(.*?\)\n", (folder / "native.py").read_text(), re.DOTALL
    )
    assert len(called) == 2
    assert all("clock.machine_s(" in call for call in called), called


def test_how_slow_time_runs_is_read_from_the_plan() -> None:
    """The spec may say `auto`; what that is, the plan's clock and the summary know."""
    allowed = {"plan/plan.py", "machine/doctor.py"}
    for path in (ROOT / "testbed").rglob("*.py"):
        name = str(path.relative_to(ROOT / "testbed"))
        assert name in allowed or "experiment.dilation" not in path.read_text(), name


def test_backends_take_what_they_are_distinguished_from_links_in_real_time() -> None:
    """A stage is made of the virtual link, then scaled: no field of it may hide a time without its unit."""
    clock = Clock(K)
    link = planned(link={"rate": "8gbit", "delay": "2ms", "jitter": "250us"}).directions[0].requested
    for name, backend in delay_backends().items():
        make = partial(backend.stage, interface="w0-eth0", index=0, seed=1)
        scaled: Any = clock.real(make(link))
        manual: Any = make(clock.real(link))
        for field in fields(scaled):
            if field.name not in {"max_packets", "parameters"}:
                assert getattr(scaled, field.name) == getattr(manual, field.name), (name, field.name)
        if hasattr(scaled, "parameters"):
            there, here = scaled.parameters, manual.parameters
            differing = {each.name for each in fields(there) if getattr(there, each.name) != getattr(here, each.name)}
            assert differing <= {"max_packets"}, name
