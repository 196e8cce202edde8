"""What a run has counted and measured, on its way to plain facts. Nothing is judged here.

:class:`testbed.record.summary.Results` is what is computed from it, and what the record keeps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import starmap
from typing import Final, NamedTuple

import polars as pl

from testbed.calibration.tolerances import Calibration
from testbed.control.worker import SwitchStatistics
from testbed.deployment.aggregators import AggregatorReport
from testbed.experiment.clock import Clock
from testbed.experiment.delay_backends.base import DelayCounters
from testbed.experiment.storage.base import STORAGE_NODE
from testbed.hosts.base import Throttling
from testbed.hosts.machines import UnderlayMeasurement
from testbed.links.htb import wire_bytes
from testbed.measure.backlog import least_rate_bps, probing_limit_s
from testbed.measure.capture import Captured
from testbed.measure.observations import Barrier, Observations
from testbed.measure.snapshot import Snapshot
from testbed.plan.aggregators import aggregated_traffic, exchange_delay_s
from testbed.plan.background import FlowBytes
from testbed.plan.buckets import scaled
from testbed.plan.direction import Direction
from testbed.plan.paths import Hop
from testbed.plan.plan import Plan
from testbed.plan.prediction import Prediction, predict
from testbed.record.number_text import rate_text
from testbed.record.summary import (
    BacklogSummary,
    CaptureSummary,
    CommandExit,
    CommandSummary,
    DelayLine,
    PrometheusSummary,
)
from testbed.record.writer import RecordWriter
from testbed.theory.predict import RunPrediction
from testbed.verdict import retransmissions
from testbed.verdict.aggregation import aggregator_summaries, losses, switched_bytes, violations
from testbed.verdict.background import background_ends, crossed, flows_between, on_direction, summaries
from testbed.verdict.changes import changed_directions
from testbed.verdict.facts import End, Facts, LinkFacts, Quota, StorageFacts
from testbed.verdict.machine import backlog_summary
from testbed.verdict.summarize import payload_bytes_per_iteration
from testbed.verdict.underlay import underlay_facts
from testbed.verdict.waiting import run_queue_share
from testbed.worker.run_queue import waited_s
from transports.channels.base import PeerStatistics
from transports.compression.base import Exchange

_NUM_NAMED: Final = 3
_NO_THROTTLING: Final = Throttling(num_periods=0, num_throttled=0, throttled_s=0.0)


@dataclass(kw_only=True)
class RunResults:
    """What a run has counted and measured so far; `facts` says it as plain data. Reads, and changes nothing."""

    plan: Plan
    run_id: str
    started_at: datetime
    epoch_s: float
    """CLOCK_MONOTONIC at the zero of the frames' times."""
    writer: RecordWriter
    """Of its frames."""
    calibration: Calibration
    setup: str
    """What workers run, in a line for a reader."""
    code_changed: bool = False
    """Whether the testbed's sources are not those any more that this process began with."""
    predicted: RunPrediction | None = None
    """What a model said of the iterations before; None: nothing is exchanged."""
    observations: Observations = field(default_factory=Observations)
    redirected: list[str] = field(default_factory=list)
    """The backends that a command's process groups requested when ours took their place."""
    aggregation_lost: Sequence[str] = ()
    """Why switches stopped adding for a command's workers, as these have said it."""
    captures: Sequence[Captured] = ()
    num_changes_not_reached: int = 0
    overhead_s: dict[str, float] = field(default_factory=dict)
    """Wall seconds around the iterations, by phase."""
    differences: Sequence[str] = ()
    """Between settings requested and read back after the run."""
    aggregators: Sequence[AggregatorReport] = ()
    prometheus: PrometheusSummary | None = None
    underlay: list[Sequence[UnderlayMeasurement]] = field(default_factory=list)
    """What was measured of the network between machines, before and after the run."""

    @cached_property
    def links(self) -> list[LinkFacts]:
        """Each direction's facts over the measured window, once that is over."""
        window = self.observations.window
        if "measure" not in window or "done" not in window:
            return []
        between = _Window(window["measure"], window["done"], self.background, self.observations.endpoint_statistics)
        return [self._link(direction, between, self._expected(direction)) for direction in self.plan.directions]

    @cached_property
    def reading(self) -> list[LinkFacts]:
        """The same over what is read before the first iteration; none where nothing is."""
        window, storage = self.observations.window, self.plan.storage
        if storage is None or "started" not in window or "read" not in window:
            return []
        start, end = window["started"], window["read"]
        between = _Window(start, end, flows_between(self.plan, start, end), {})
        wire_bytes = storage.start.wire_bytes
        return [
            self._link(direction, between, _Expected(wire_bytes.get(direction.hop, 0), 0, 0))
            for direction in self.plan.directions
        ]

    @cached_property
    def background(self) -> list[FlowBytes]:
        """What each background flow did over the measured window, once that is over."""
        window = self.observations.window
        return flows_between(self.plan, window["measure"], window["done"]) if "done" in window else []

    @property
    def _switch_statistics(self) -> Mapping[int, SwitchStatistics]:
        return self.observations.switch_statistics

    @property
    def _window_s(self) -> float:
        window = self.observations.window
        return window["done"].at_s - window["measure"].at_s if "done" in window else 0.0

    @property
    def _command_window(self) -> tuple[float, float] | None:
        """Seconds since the epoch at which a command's workers were started and had ended; None: it is no command.
        Counters are read before the one and after the other."""
        barriers = self.observations.barriers
        if "done" not in barriers or self.plan.experiment.workload.command is None:
            return None
        return barriers["measure"].released_s - self.epoch_s, barriers["done"].arrived_s - self.epoch_s

    def facts(self, end: End) -> Facts:
        """The facts of the whole run, or of as much as there was."""
        experiment, plan = self.plan.experiment, self.plan
        window, statistics = self.observations.window, self._switch_statistics
        before, after = (window["measure"].machine, window["done"].machine) if "done" in window else (None, None)
        synchronisation = experiment.synchronisation
        return Facts(
            name=experiment.name,
            run_id=self.run_id,
            spec_sha256=experiment.sha256(),
            setup=self.setup,
            computing=experiment.workload.computing(),
            started_at=self.started_at.isoformat(timespec="seconds"),
            epoch_s=self.epoch_s,
            num_workers=experiment.workers,
            dilation=plan.clock.dilation,
            host_cost=experiment.host_cost,
            record=str(self.writer.directory),
            end=end,
            iterations=self.writer.frame("iterations"),
            buckets=self.writer.frame("buckets"),
            samples=self.writer.frame("links"),
            machine=self.writer.frame("machine"),
            changes=self.writer.frame("changes"),
            num_changes_not_reached=self.num_changes_not_reached,
            changes_late_s=self.observations.changes_late_s,
            stages=self.writer.frame("stages"),
            launched_s=None if self.observations.launched_s is None else self.observations.launched_s - self.epoch_s,
            barriers={
                name: Barrier(*(moment_s - self.epoch_s for moment_s in barrier))
                for name, barrier in self.observations.barriers.items()
            },
            storage=self._storage(),
            reading=self.reading,
            links=self.links,
            underlay=[] if plan.spread is None else underlay_facts(plan.spread, self.underlay),
            granule_bytes=self._granule_bytes,
            num_buckets=len(plan.buckets),
            prediction=self._prediction(),
            predicted=self.predicted,
            compression=experiment.compression.kind if experiment.compression.compresses else None,
            gradient_bytes=plan.prediction.gradient_bytes,
            traffic_ratio=self._traffic_ratio(),
            synchronisation=synchronisation.kind,
            in_step=synchronisation.in_step,
            replays_graph=experiment.workload.graph() is not None,
            verifies_gradients=experiment.workload.verifies_gradients(),
            exchanges_always=synchronisation.gradients_in_every_iteration,
            exchange_every=synchronisation.interval,
            num_exchanges=self._num_exchanges(),
            command=self._command(),
            command_end_s=self._command_window[1] if self._command_window else 0.0,
            background=summaries(self.background, plan.clock.virtual_s(self._window_s)),
            aggregators=aggregator_summaries(self.aggregators, statistics, plan.clock, self.aggregation_lost),
            aggregation_violations=violations(self.aggregators, statistics, self.aggregation_lost),
            aggregation_lost=losses(self.aggregators, statistics, self.aggregation_lost),
            limited_ranks=self._limited_ranks,
            quotas=self._quotas(),
            serving_waited_s=self._serving_waited_s(),
            waits=self._waits(),
            gradient_threads=self.observations.gradient_threads,
            other_programs=self.observations.other_programs,
            steal_share=after.steal_share_since(before) if before and after else 0.0,
            softnet_drops=after.softnet_drops - before.softnet_drops if before and after else 0,
            read_back_differences=self.differences,
            foreign_changes=[change.text for change in self.observations.foreign_changes],
            interference=self.observations.interference,
            code_changed=self.code_changed,
            unused_backend=self._unused_backend(),
            notes=self._notes(),
            not_checked=self._not_checked(),
            prometheus=self.prometheus,
            captures=[
                CaptureSummary(
                    link=each.link,
                    file=str(each.path.relative_to(self.writer.directory)),
                    num_packets=each.num_packets,
                    num_dropped=each.num_dropped,
                )
                for each in self.captures
            ],
            overhead_s=self.overhead_s,
            uss_bytes=self.observations.uss_bytes,
            parameters_sha256=self.observations.parameters_sha256 if experiment.compression.replicas_agree else (),
        )

    @property
    def _granule_bytes(self) -> int:
        return wire_bytes(self.plan.experiment.packet_bytes, self.plan.experiment.mtu)

    @cached_property
    def _longest_frame_bytes(self) -> int:
        """On any link: a faster one passes its frames on to a slower one whole."""
        return max(map(self._frame_bytes, self.plan.directions))

    @cached_property
    def _lossy(self) -> set[tuple[str, str]]:
        """Directions, by link and sending node, whose drops belong to the experiment."""
        drawn = {(each.link, each.hop[0]) for each in self.plan.all_configured if each.spec.draws}
        return drawn | crossed(self.plan) | changed_directions(self.writer.frame("changes"))

    @cached_property
    def _unreported(self) -> set[Hop]:
        return retransmissions.unreported(self.plan)

    def _expected(self, direction: Direction) -> "_Expected":
        """Over the measured window: of gradients, and of batches."""
        experiment = self.plan.experiment
        num_iterations = experiment.workload.num_iterations()
        input_bytes = None if direction.input_bytes is None else direction.input_bytes * num_iterations
        planned_bytes = None if direction.hop in self._unreported else direction.expected_bytes
        if planned_bytes is None or not experiment.workload.sends_only_gradients():
            return _Expected(None, input_bytes, 0)
        num_exchanges = experiment.synchronisation.num_exchanges(num_iterations)
        gradient_bytes = planned_bytes * num_exchanges
        switched = switched_bytes(self.plan, direction, self._switch_statistics)
        if switched is None or input_bytes is None:
            return _Expected(None, input_bytes, switched.retransmitted if switched else 0)
        num_bytes = gradient_bytes + switched.repeated + input_bytes
        return _Expected(num_bytes, input_bytes, switched.retransmitted, direction.split_bytes * num_exchanges)

    def _link(self, direction: Direction, between: "_Window", expected: "_Expected") -> LinkFacts:
        key = (direction.link, direction.sender.node)
        start, end = between.start, between.end
        measured = next((m for m in self.calibration.links if (m.link, m.sender) == key), None)
        acknowledged, retransmitted = self._overheads(direction, between)
        crossing, uncertain = on_direction(self.plan, between.background, direction, start, end)
        return LinkFacts(
            name=direction.link,
            from_=direction.sender.node,
            to=direction.receiver.node,
            rate_bps=direction.rate_bps,
            delay_s=direction.delay_s,
            measured_rate_bps=measured.rate_bps if measured else None,
            measured_delay_s=measured.delay_s if measured else None,
            expected_bytes=expected.num_bytes,
            split_bytes=expected.split_bytes,
            input_bytes=expected.input_bytes,
            counted_s=(start.samples[key].at_s - self.epoch_s, end.samples[key].at_s - self.epoch_s),
            class_bytes_start=start.samples[key].class_bytes,
            class_bytes_end=end.samples[key].class_bytes,
            drops_start=start.samples[key].drops,
            drops_end=end.samples[key].drops,
            acknowledgement_bytes=acknowledged,
            retransmitted_bytes=retransmitted + expected.retransmitted,
            background_bytes=crossing,
            background_uncertain_bytes=uncertain,
            rate_measured_on=measured.rate_of if measured else None,
            rate_from_cache=measured is not None and measured.rate_from_cache,
            may_drop=key in self._lossy,
            burst_bytes=self._burst_bytes(direction),
            frame_bytes=self._frame_bytes(direction),
            to_server=self.plan.node(direction.receiver.node).role == "server",
            backlog=self._backlog(key, start, end),
            delay_line=_delay_line(start.delay_counters.get(key), end.delay_counters.get(key), clock=self.plan.clock),
        )

    def _burst_bytes(self, direction: Direction) -> int:
        """May leave at once; 0 where there is no rate to exceed."""
        if direction.requested.unshaped:
            return 0
        return direction.shaper.burst_bytes if direction.shaper else self._granule_bytes

    def _frame_bytes(self, direction: Direction) -> int:
        """The longest that is sent whole; what has no limit of its own has the run's."""
        if direction.gso_max_segments is None:
            return self._granule_bytes
        return min(
            self._granule_bytes,
            direction.gso_max_segments * wire_bytes(self.plan.experiment.mtu, self.plan.experiment.mtu),
        )

    def _backlog(self, key: tuple[str, str], start: Snapshot, end: Snapshot) -> BacklogSummary | None:
        link, node = key
        from_s, until_s = (snapshot.machine.at_s - self.epoch_s for snapshot in (start, end))
        mine = (pl.col("link") == link) & (pl.col("node") == node)
        probes = self.writer.frame("backlog").filter(mine & pl.col("at_s").is_between(from_s, until_s))
        return backlog_summary(probes, granule_bytes=self._longest_frame_bytes)

    def _overheads(self, direction: Direction, between: "_Window") -> tuple[int, int]:
        """Wire bytes of pure acknowledgements, background flows' included, and payload that workers sent again, that
        crossed this direction in the window.

        The kernel says it of its TCP, the workers of channels that are not. What a worker's end sent followed the
        path to the other end. Where that path has equal alternatives nobody knows which it took, and nothing is
        attributed: there the link's bytes, which are not checked, contain acknowledgements.
        """
        own = retransmissions.overheads(
            between.endpoint_statistics,
            self.plan.paths,
            self.plan.participants,
            direction.hop,
        )
        acknowledged, retransmitted = own.acknowledgement_bytes, own.retransmitted_bytes
        hosts, of_background = self.plan.host_addresses(), background_ends(self.plan)
        for node, connections in between.end.connections.items():
            for ends, connection in connections.items():
                path = self.plan.paths.get((node, hosts.get(connection.remote[0], "")))
                if path is None or path.shares.get(direction.hop) != 1:
                    continue
                before = between.start.connections.get(node, {}).get(ends)
                acknowledged += connection.acknowledgement_bytes - (before.acknowledgement_bytes if before else 0)
                if of_background.isdisjoint((connection.local, connection.remote)):
                    retransmitted += connection.retransmitted_bytes - (before.retransmitted_bytes if before else 0)
        return acknowledged, retransmitted

    def _unused_backend(self) -> str | None:
        """Why the backend that the spec asks for may not be what the numbers are of."""
        command = self.plan.experiment.workload.command
        if command is None or command.backend is None or self.redirected:
            return None
        return (
            f"workload.backend: no process group was made by {command.backend}: the command uses no torch.distributed, "
            "or its Python has not this package installed (pip install ina-testbed)"
        )

    def _notes(self) -> list[str]:
        """What a reader of the numbers should know of the gradients."""
        compressor = self.plan.experiment.compression
        notes = [
            f"{each.plan.title} gave out sums without a straggler's contribution, scaled up: "
            f"{each.counters['partial']:,} of {each.counters['done']:,} chunks (collective.partial_after)"
            for each in self.aggregators
            if each.counters.get("partial")
        ]
        if not compressor.replicas_agree:
            notes.append(
                f"compression {compressor.kind} leaves every worker values of its own: the times are real, the loss "
                "and the parameters mean nothing"
            )
        if compressor.data_dependent:
            notes.append(
                f"how many bytes compression {compressor.kind} sends depends on the gradients: the links' bytes could "
                "not be compared with a schedule"
            )
        if (refused := self.observations.priority_refused) is not None:
            notes.append(
                f"threads that move gradients could not run before those that compute ({refused}): run as root, and in "
                "a container with --cap-add SYS_NICE"
            )
        return [*notes, *_dilated(self.plan), *self.observations.hints]

    def _quotas(self) -> list[Quota]:
        """Each CPU quota over the measured window; first the one of the testbed's own that held it back most, if it has
        any."""
        if "done" not in self.observations.window:
            return []
        start, end = self.observations.window["measure"], self.observations.window["done"]
        found: list[Quota] = []
        own = [
            _quota("the whole testbed", None, after.since(start.own_throttling[group]), None)
            for group, after in end.own_throttling.items()
            if group in start.own_throttling
        ]
        found += sorted(own, key=lambda quota: quota.throttled_share)[-1:]
        for rank in range(self.plan.experiment.workers):
            name = f"w{rank}"
            if name in end.throttling:
                cores = self.plan.limits(rank).cpu_cores
                before = start.throttling.get(name, _NO_THROTTLING)  # a command begins after the window
                quota = _quota(name, cores, end.throttling[name].since(before), self._waiting_share(rank))
                found.append(quota if cores is None else _as_requested(quota, self.plan.clock))
        return found

    def _serving_waited_s(self) -> dict[str, float]:
        if "done" not in self.observations.window:
            return {}
        start, end = (self.observations.window[name].serving_delays_s for name in ("measure", "done"))
        # The storage node moves no gradients.
        return {name: waited_s(start.get(name, {}), after) for name, after in end.items() if name != STORAGE_NODE}

    def _waits(self) -> pl.DataFrame | None:
        """Of hosts that wait by nobody's design; the storage node moves no gradients."""
        if self.observations.waits_missing is not None:
            return None
        limited = [f"w{rank}" for rank in self._limited_ranks]
        return self.writer.frame("waits").filter(~pl.col("host").is_in([STORAGE_NODE, *limited]))

    @property
    def _limited_ranks(self) -> frozenset[int]:
        plan = self.plan
        return frozenset(rank for rank in range(plan.experiment.workers) if plan.limits(rank).limits_cpu)

    def _storage(self) -> StorageFacts | None:
        storage = self.plan.storage
        if storage is None:
            return None
        read = [("started", "read")] if storage.reads_at_start else []
        read += [("measure", "done")] if any(storage.batch.payload_bytes) else []
        return StorageFacts(
            text=storage.text,
            start_bytes=sum(storage.start.payload_bytes),
            start_least_s=storage.start.least_s,
            batch_bytes=max(storage.batch.payload_bytes),
            batch_least_s=storage.batch.least_s,
            waited_share=max(starmap(self._storage_waited_share, read), default=0.0),
        )

    def _storage_waited_share(self, begin: str, end: str) -> float:
        """Run-queue delay of the storage node's thread that waited longest, over the time between the barriers."""
        window = self.observations.window
        if begin not in window or end not in window:
            return 0.0
        before, after = (window[name].serving_delays_s.get(STORAGE_NODE, {}) for name in (begin, end))
        longest_s = max((delay_s - before.get(thread, 0.0) for thread, delay_s in after.items()), default=0.0)
        return longest_s / (window[end].at_s - window[begin].at_s)

    def _waiting_share(self, rank: int) -> float | None:
        experiment = self.plan.experiment
        return run_queue_share(
            self.writer.frame("iterations"),
            num_workers=experiment.workers,
            ranks=[rank],
            ends_together=experiment.ends_together,
        )

    def _not_checked(self) -> list[str]:
        """What could not be compared with the configuration, and why."""
        found = []
        without = [each for each in self.links if each.expected_bytes is None]
        if without:
            found.append(f"bytes of {len(without)} directions: {self._why_unknown()}")
        if cached := [each for each in self.links if each.rate_from_cache]:
            found.append(
                f"rates of {len(cached)} directions for this run: they are from the cache of calibration, measured on "
                "links of the same class in an earlier one"
            )
        named = [each for each in self.links if not (each.has_own_rate or each.rate_from_cache)]
        measured = sorted({each.rate_measured_on for each in named if each.rate_measured_on})
        if measured:
            found.append(
                f"rates of {sum(bool(each.rate_measured_on) for each in named)} directions one by one: they count as "
                f"measured where another of their class was ({', '.join(measured[:_NUM_NAMED])}"
                f"{' and others' if len(measured) > _NUM_NAMED else ''})"
            )
        if unmeasured := [each for each in self.links if each.measured_rate_bps is None]:
            found.append(f"rates of {len(unmeasured)} directions: calibration did not measure them")
        if unmeasured := [each for each in self.links if each.measured_delay_s is None]:
            found.append(f"delays of {len(unmeasured)} directions: calibration did not measure them")
        limit_s = probing_limit_s(self.plan.experiment.metrics.interval_s)
        least_bps = self.plan.clock.virtual_bps(least_rate_bps(granule_bytes=self._granule_bytes, limit_s=limit_s))
        if slow := [each for each in self.plan.directions if each.rate_bps < least_bps]:
            found.append(
                f"rates of {len(slow)} directions while packets waited: below {rate_text(least_bps)} a probe sees too "
                "few of them"
            )
        if any(each.collective.plane.in_kernel for each in self.plan.aggregators):
            found.append("run-queue delay of aggregators in the kernel: they have no threads")
        if "done" in self.observations.window and self.observations.waits_missing is not None:
            found.append(
                "which threads waited for a core at the same time, so that their waits are added up: "
                f"{self.observations.waits_missing}"
            )
        if any(each.tenants for each in self.plan.aggregators):
            found.append("bytes of the other jobs at the aggregating switch: they have no schedule")
        return found

    def _why_unknown(self) -> str:
        """Why the bytes of some direction have nothing to be compared with."""
        experiment = self.plan.experiment
        if experiment.workload.verifies_gradients():
            return "workload.verify_gradients gathers all gradients over the same links"
        if not experiment.workload.sends_only_gradients():
            return f"a workload {experiment.workload.kind} sends what it likes"
        if experiment.stack is not None and experiment.stack.schedule is None:
            return f"the schedule of {experiment.stack.kind} is its own"
        if not experiment.channel.countable:
            return f"what short messages of channel {experiment.channel.kind} cost on the wire is not known in advance"
        if experiment.compression.data_dependent:
            return f"how many bytes compression {experiment.compression.kind} sends depends on the gradients"
        if any(each.lost for each in self._switch_statistics.values()):
            return "the switch stopped aggregating"
        if self._unreported:
            return (
                f"what parameter servers acknowledged and sent again over channel {experiment.channel.kind} only they "
                "know, and they do not report it"
            )
        return "flows could have taken another of several equal paths"

    def _prediction(self) -> Prediction | None:
        """The prediction with the latency that calibration measured."""
        if not self.plan.buckets or not self.calibration.links:
            return None
        delays_s = {(measured.sender, measured.receiver): measured.delay_s for measured in self.calibration.links}
        plan = self.plan
        latency_s = exchange_delay_s(plan.paths, plan.traffic, plan.aggregators, delays_s)
        return predict(
            self.plan.experiment,
            self.plan.collective,
            self.plan.buckets,
            self._exchanges(),
            self.plan.directions,
            self.plan.world,
            all_paths=plan.paths,
            latency_s=latency_s,
            costs=plan.costs,
            aggregated=aggregated_traffic(plan.aggregators, plan.traffic),
            delays_s=delays_s,
        )

    def _exchanges(self) -> tuple[Exchange, ...]:
        """Those planned; as long as they came to be where that depended on the gradients."""
        found_bytes = payload_bytes_per_iteration(self.writer.frame("buckets"))
        experiment, planned = self.plan.experiment, self.plan.exchanges
        if found_bytes is None or not experiment.compression.data_dependent:
            return planned
        return scaled(planned, payload_bytes=found_bytes, num_workers=experiment.workers)

    def _command(self) -> CommandSummary | None:
        command, window = self.plan.experiment.workload.command, self._command_window
        if command is None or window is None:
            return None
        begun_s, dilation = window[0], self.plan.clock.dilation
        return CommandSummary(
            argv=list(command.argv),
            backend=command.backend,
            redirected=self.redirected,
            launcher=command.launcher,
            start_s=begun_s,
            time_s=(window[1] - begun_s) / dilation,
            workers=[
                CommandExit(name=f"w{rank}", status=status, time_s=(at_s - self.epoch_s - begun_s) / dilation)
                for rank, (status, at_s) in sorted(self.observations.exits.items())
            ],
        )

    def _traffic_ratio(self) -> float | None:
        plan = self.plan
        senders = set(plan.participants)
        sent_bytes = sum(facts.bytes for facts in self.links if facts.from_ in senders)
        without_bytes = plan.uncompressed_bytes * plan.experiment.workload.num_iterations()
        return sent_bytes / without_bytes if sent_bytes and without_bytes else None

    def _num_exchanges(self) -> int | None:
        """None where each worker exchanges by itself."""
        experiment = self.plan.experiment
        if not experiment.synchronisation.in_step:
            return None
        return experiment.synchronisation.num_exchanges(experiment.workload.num_iterations())


class _Window(NamedTuple):
    """Between two snapshots."""

    start: Snapshot
    end: Snapshot
    background: Sequence[FlowBytes]
    endpoint_statistics: Mapping[int, Mapping[int, PeerStatistics]]
    """Of channels that count themselves, by rank and peer."""


class _Expected(NamedTuple):
    """On a direction, between two snapshots."""

    num_bytes: int | None
    """None: not known."""
    input_bytes: int | None
    """Of these, read for iterations."""
    retransmitted: int
    """By workers to an aggregating switch."""
    split_bytes: int = 0
    """More than these, if no message shares a segment with the next."""


def _delay_line(start: DelayCounters | None, end: DelayCounters | None, *, clock: Clock) -> DelayLine | None:
    if start is None or end is None:
        return None
    between = end.since(start)
    late_s = [None if late is None else clock.virtual_s(late) for late in map(between.late_s, (0.5, 0.99, 1.0))]
    return DelayLine(
        num_packets=between.num_packets,
        num_lost=between.num_lost,
        num_dropped=between.num_dropped,
        num_marked=between.num_marked,
        late_median_s=late_s[0],
        late_p99_s=late_s[1],
        late_max_s=late_s[2],
        overdue_s=clock.virtual_s(between.overdue_s),
    )


def _dilated(plan: Plan) -> list[str]:
    """What slower time does not keep as it would be."""
    clock = plan.clock
    if clock.dilation == 1:
        return []
    slower = (
        f"time ran {clock.dilation:g} times slower, and times and rates are virtual: what hosts themselves spend on "
    )
    if plan.experiment.host_cost == "real":
        slower += (
            "messages (system calls, copies, sums) is in virtual time, too, in the mean: workers had that much less "
            "CPU time; switches and what the kernel does for them had not"
        )
    else:
        slower += "messages (system calls, copies, sums) counts so many times less, as if they were that much faster"
    return [slower, *plan.warnings]


def _as_requested(quota: Quota, clock: Clock) -> Quota:
    """In virtual time: a host's core is a share of the machine's, for so many times as long."""
    assert quota.cpu_cores is not None
    return replace(quota, cpu_cores=quota.cpu_cores * clock.dilation, throttled_s=clock.virtual_s(quota.throttled_s))


def _quota(name: str, cpu_cores: float | None, between: Throttling, waiting_share: float | None) -> Quota:
    return Quota(
        name=name,
        cpu_cores=cpu_cores,
        throttled_share=between.num_throttled / between.num_periods if between.num_periods else 0.0,
        throttled_s=between.throttled_s,
        waiting_share=waiting_share,
    )
