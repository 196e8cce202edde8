"""Takes what workers and sampler say while a run goes on to the record, the metrics endpoint and the screen."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any, Final

from testbed.control import control_pb2 as messages
from testbed.control.worker import WorkerResult
from testbed.deployment.live_links import LinkChangeEvent, LiveLinks
from testbed.experiment.changes import timeline
from testbed.experiment.link import MAX_RATE_BPS
from testbed.measure.backlog import BacklogProbe
from testbed.measure.machine import MachineSample
from testbed.measure.observations import COMPARED_PHASES, Barrier, Observations
from testbed.measure.programs import ProcessorUse
from testbed.measure.run_queue_trace import RunQueueWatch, root_threads
from testbed.measure.sampler import LinkSample, LinkSampler
from testbed.measure.snapshot import Snapshot
from testbed.metrics.exporter import Exporter, IterationTimes
from testbed.plan.plan import Plan
from testbed.record.status import Progress
from testbed.record.writer import RecordWriter
from testbed.runner.coordinator import Listener
from testbed.runner.gradient_threads import GradientThreads
from testbed.verdict.parts import PartsMeanwhile

MEASURED: Final = "measured"
OnLine = Callable[[int, str, bool], None]
"""Rank, line, and whether it was printed to standard error."""
_DURATIONS: Final = frozenset(
    {
        "cpu_s",
        "run_queue_delay_s",
        "communication_run_queue_delay_s",
        "encode_s",
        "decode_s",
        "forward_stall_s",
        "pace_s",
        "overrun_s",
    }
)


class Recorder(Listener):
    """Called by the coordinator's thread, `on_samples` by the sampler's."""

    def __init__(
        self,
        plan: Plan,
        *,
        epoch_s: float,
        writer: RecordWriter,
        exporter: Exporter,
        progress: Progress,
        links: LiveLinks,
        observations: Observations,
        workers: Callable[[], Mapping[str, int]],
        processes: Callable[[], Mapping[str, int]],
        hosts: Callable[[], Mapping[str, int]],
        on_line: OnLine | None = None,
    ) -> None:
        """`observations` are filled; `workers` are pids in the root namespace by host, now, `processes`
        those of what else belongs to the run, by name, and `hosts` one in the namespaces of each host; `on_line` hears
        what a command's workers print."""
        self.sampler: LinkSampler | None = None
        self.run_queue: RunQueueWatch | None = None
        self.gradient_threads: GradientThreads | None = None
        """None where none are to run before others: of stacks that poll."""
        self.watched: list[Callable[[], None]] = [links.check]
        """Called about ten times a second; each raises what has ended the run."""
        self._observations = observations
        self._workers = workers
        self._processes = processes
        self._hosts = hosts
        self._on_line = on_line
        self._plan = plan
        self._epoch_s = epoch_s
        self._writer = writer
        self._exporter = exporter
        self._progress = progress
        self._links = links
        self._previous: dict[tuple[str, str], LinkSample] = {}
        self._waiting: dict[int, dict[int, messages.Iteration]] = {}
        self._parts = PartsMeanwhile(ends_together=plan.experiment.ends_together)
        self._phase = ""
        self._measuring = False
        self._waits_lock = threading.Lock()

    def on_samples(self, samples: Sequence[LinkSample]) -> None:
        """Take a reading of every link, in real time."""
        used = [(sample.port, self._utilization(sample)) for sample in samples if sample.rate_bps <= MAX_RATE_BPS]
        samples = [replace(each, rate_bps=self._plan.clock.virtual_bps(each.rate_bps)) for each in samples]
        rows = [asdict(sample) for sample in samples]
        for row in rows:
            row["at_s"] -= self._epoch_s
            row["read_from_s"] -= self._epoch_s
        self._writer.append_links(rows)
        machine = MachineSample.take()
        self._take_waits()
        self._writer.append_machine([asdict(machine) | {"at_s": machine.at_s - self._epoch_s}])
        self._exporter.update_links(samples)
        self._exporter.update_machine(machine)
        self._progress.links(used)

    def _take_waits(self, *, measuring: bool | None = None) -> None:
        """Of the measured iterations they are kept; `measuring` says that these begin or end now."""
        with self._waits_lock:  # sampler and coordinator come here, and what is taken before the end is kept
            waits = self.run_queue.take() if self.run_queue is not None else []
            if self._measuring:
                self._writer.append_waits(each.since(self._epoch_s)._asdict() for each in waits)
            if measuring is not None:
                self._measuring = measuring

    def on_probe(self, probe: BacklogProbe) -> None:
        """Take a probe of a backlogged link."""
        self._writer.append_backlog([asdict(probe) | {"at_s": probe.at_s - self._epoch_s}])
        self._exporter.count_probe(probe)

    def _utilization(self, sample: LinkSample) -> float:
        """Since this link's sample before: 0 to 1."""
        before = self._previous.get((sample.link, sample.node))
        self._previous[sample.link, sample.node] = sample
        if before is None or sample.at_s <= before.at_s:
            return 0.0
        return 8 * (sample.class_bytes - before.class_bytes) / (sample.at_s - before.at_s) / sample.rate_bps

    def on_link_changes(self, events: Sequence[LinkChangeEvent]) -> None:
        """Links were changed; called by the thread that did it."""
        self._writer.append_changes([asdict(event) | {"at_s": event.at_s - self._epoch_s} for event in events])
        self._exporter.count_changes(events)

    def on_launch(self, at_s: float) -> None:
        """Keep it: starting counts from there."""
        self._observations.launched_s = at_s

    def on_barrier(self, name: str) -> None:
        """The borders of the measured window, and of reading before the first iteration; and the first iteration that
        communicates, from which moments count."""
        arrived_s = time.monotonic()
        self._on_barrier(name)
        self._observations.barriers[name] = Barrier(arrived_s=arrived_s, released_s=time.monotonic())

    def _on_barrier(self, name: str) -> None:
        if name == "measure":
            self._links.forget_late()
        if name == "done":
            self._observations.changes_late_s = self._links.late_s
        if name in {"warmup", "measure"} and self.sampler is not None and not self._links.begun:
            self._links.begin(timeline(self._plan.experiment.changes))
            self.sampler.begin_background()
        if any(name in borders for borders in COMPARED_PHASES.values()):
            pids = [*self._workers().values(), *self._processes().values()]
            self._observations.processor_use[name] = ProcessorUse.take(pids, hosts=self._hosts().values())
        reading = self._plan.storage is not None and self._plan.storage.reads_at_start and name in {"started", "read"}
        if name in {"warmup", "measure"}:
            self._prioritise()
        if name == "done" and self.gradient_threads is not None:
            self._observations.gradient_threads = self.gradient_threads.read_back()
        if name in {"measure", "done"}:
            self._take_waits(measuring=name == "measure")
            if name == "done" and self.run_queue is not None:
                self._observations.waits_missing = self.run_queue.missing
        if (name in {"measure", "done"} or reading) and self.sampler is not None:
            self._observations.window[name] = Snapshot.take(self.sampler)
        if reading and name == "started":
            self._progress.phase("read data")
        if name == "done" and self.sampler is not None:
            self._observations.foreign_changes = self.sampler.end_watching()
        if name == "measure" and self._plan.experiment.workload.judged_by_links_alone():
            self._progress.phase("command")

    def _prioritise(self) -> None:
        """Before the first iteration that communicates, and once more when those that it has started are there."""
        if self.gradient_threads is not None:
            self.gradient_threads.prioritise()
            self._observations.priority_refused = self.gradient_threads.refused

    def on_iteration(self, rank: int, iteration: messages.Iteration) -> None:
        """One row, and its buckets; the screen hears of it when every worker is through it."""
        if self._observations.first_iteration_s is None:
            self._observations.first_iteration_s = iteration.start_s
        self._writer.append_iterations([{"rank": rank, **self._scalars(iteration)}])
        key = {"rank": rank, "phase": iteration.phase, "index": iteration.index}
        self._writer.append_buckets([key | self._scalars(bucket) for bucket in iteration.buckets])
        self._exporter.note_iteration(f"w{rank}")
        if iteration.phase != self._phase:
            self._phase = iteration.phase
            self._waiting.clear()
            self._progress.phase(iteration.phase.replace("_", "-"))
        workers = self._waiting.setdefault(iteration.index, {})
        workers[rank] = iteration
        if len(workers) == self._plan.experiment.workers:
            self._iteration_done(self._waiting.pop(iteration.index))

    def _iteration_done(self, workers: dict[int, messages.Iteration]) -> None:
        phase, index = workers[0].phase, workers[0].index
        if phase == MEASURED:
            self._observe(workers)
        loss = fmean(each.loss for each in workers.values())
        lengths = self._plan.experiment.workload.phase_lengths()
        if phase in lengths:
            self._progress.iteration(phase, index + 1, lengths[phase], loss)

    def _observe(self, workers: dict[int, messages.Iteration]) -> None:
        """How long each waited for the slowest is known when all of them are through it."""
        clock, experiment = self._plan.clock, self._plan.experiment
        # Workers that do not wait for each other have no least in common, as the verdict says.
        in_step = experiment.synchronisation.in_step
        bound_s = clock.real_s(self._plan.prediction.schedule_bound_s) if in_step else 0.0
        rows = [{"rank": rank, **self._scalars(iteration)} for rank, iteration in workers.items()]
        for rank, wall_s in self._parts.of(rows).items():
            parts_s = {name: clock.virtual_s(part_s) for name, part_s in wall_s.items()}
            times = _times(workers[rank], parts_s, bound_s=bound_s)
            self._exporter.observe_iteration(f"w{rank}", times, loss=workers[rank].loss)

    def on_stage(self, rank: int, stage: messages.Stage) -> None:
        """One row."""
        row = self._scalars(stage)
        self._writer.append_stages([{"rank": rank, "stage": row.pop("name"), **row}])

    def on_computing_threads(self, rank: int, threads: Sequence[int]) -> None:
        """What they wait for lengthens computing, and the worker's others run before them."""
        host = f"w{rank}"
        computing = root_threads(self._workers()[host], threads)
        if self.run_queue is not None:
            self.run_queue.computes(computing)
        if self.gradient_threads is not None:
            self.gradient_threads.computes(host, computing)

    def on_result(self, rank: int, json: str) -> None:
        """What a worker counted in the measured iterations: of an aggregating switch, of its own endpoint."""
        result = WorkerResult.parse(json)
        if result.switch is not None:
            self._observations.switch_statistics[rank] = result.switch
        if result.peers:
            self._observations.endpoint_statistics[rank] = result.peers

    def on_line(self, rank: int, line: str, *, error: bool) -> None:
        """Both streams of all workers come on threads of their own."""
        if self._on_line is not None:
            self._on_line(rank, line, error)

    def on_exit(self, rank: int, status: int) -> None:
        """The end of a command; it sends nothing else."""
        self._observations.exits[rank] = (status, time.monotonic())

    def on_interference(self, text: str) -> None:
        """Keep a reason against the run, for the verdict."""
        self._observations.interference.append(text)

    def on_hint(self, text: str) -> None:
        """Keep a hint for the verdict's notes."""
        self._observations.hints.append(text)

    def on_finished(self, rank: int, finished: messages.Finished) -> None:  # noqa: ARG002
        """A worker's last message."""
        if finished.parameters_sha256:
            self._observations.parameters_sha256.append(finished.parameters_sha256)
        self._observations.uss_bytes.append(finished.uss_bytes)

    def on_tick(self) -> None:
        """A sampler that has died, or whatever else is watched, ends the run."""
        if self.sampler is not None:
            self.sampler.check()
        for check in self.watched:
            check()

    def _scalars(self, message: Any) -> dict[str, Any]:
        """A message's plain fields; moments become seconds since the run's epoch."""
        row: dict[str, Any] = {}
        for field in message.DESCRIPTOR.fields:
            if field.message_type is None:
                value = getattr(message, field.name)
                moment = field.name.endswith("_s") and field.name not in _DURATIONS
                row[field.name] = value - self._epoch_s if moment else value
        return row


def _times(iteration: messages.Iteration, parts_s: Mapping[str, float], *, bound_s: float) -> IterationTimes:
    """Where an iteration went, given its parts and what links need for its buckets, in wall seconds."""
    service_s, reach_s = 0.0, 0.0
    for bucket in sorted(iteration.buckets, key=lambda bucket: bucket.started_s):
        service_s += max(0.0, bucket.done_s - max(bucket.started_s, reach_s))
        reach_s = max(reach_s, bucket.done_s)
    waited_for_core_s = iteration.communication_run_queue_delay_s
    return IterationTimes(
        parts_s=parts_s,
        service_s=service_s,
        run_queue_s=waited_for_core_s,
        run_queue_beyond_bound_s=min(waited_for_core_s, max(0.0, service_s - bound_s)),
    )
