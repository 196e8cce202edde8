"""One run: plan, deploy, calibrate, work, judge, record, report. The whole story of `testbed run`."""

import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from testbed.calibration.cache import Mode
from testbed.calibration.tolerances import Calibration
from testbed.errors import (
    CalibrationError,
    Interrupted,
    MissingRequirementError,
    RunFailedError,
    SpecError,
    TestbedError,
)
from testbed.experiment.changes import ScheduledChange
from testbed.experiment.experiment import Experiment
from testbed.experiment.machines import Machines
from testbed.live.feed import Feed
from testbed.machine.codec_cost import contending_codec_times
from testbed.machine.doctor import plan_to_run, require
from testbed.machine.fit import expected_error
from testbed.measure.capture import captured_links, capturing, require_dumpcap
from testbed.measure.run_queue_trace import RunQueueWatch
from testbed.measure.sampler import LinkSampler
from testbed.metrics.aggregators import scraped_aggregators
from testbed.metrics.comparison import compare
from testbed.metrics.exporter import Exporter
from testbed.metrics.families import PORT
from testbed.metrics.server import PrometheusServer
from testbed.plan.addressing import Port
from testbed.plan.machines import spread_over
from testbed.plan.plan import Plan
from testbed.record.reader import load
from testbed.record.status import Announcer, RunStatus, StatusFile
from testbed.record.summary import Summary
from testbed.record.writer import RecordWriter
from testbed.report.page import write_report
from testbed.report.terminal.setup import setup_text
from testbed.runner.engines.base import Engine
from testbed.runner.gradient_threads import GradientThreads
from testbed.runner.program import program_sha256
from testbed.runner.recorder import OnLine, Recorder
from testbed.runner.session import Session, session
from testbed.runner.user_command import aggregation_losses, redirections
from testbed.system import environment
from testbed.system.idle import wake_up_limit_us
from testbed.system.run_state import new_run_id
from testbed.system.sources import code_changed
from testbed.theory.predict import predict_run
from testbed.verdict.facts import COMPLETED, End
from testbed.verdict.run_results import RunResults
from testbed.verdict.summarize import summarize

WORK_TIMEOUT_S: Final = 7 * 24 * 3600.0
"""A run that makes progress may take this long; one that makes none ends at the spec's `timeout`."""


class RunStoppedError(Exception):
    """A run that ended early, with the summary of what it had; the error that stopped it is the cause."""

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary.reasons[0])
        self.summary = summary

    def summary_unless_interrupted(self) -> Summary:
        """What it had, for whoever goes on with other runs. Raises Interrupted where a signal stopped it, which stops
        these as well."""
        if isinstance(self.__cause__, Interrupted):
            raise self.__cause__ from None
        return self.summary


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureRequest:
    """Which links to capture, and how much of each packet."""

    links: Sequence[str] = ()
    """`w1-s0`."""
    snap_bytes: int = 128
    """Ethernet, IP and TCP headers with all their options, and the header of a frame in them."""


def run_experiment(
    experiment: Experiment,
    *,
    output: Path,
    progress: Announcer,
    capture: CaptureRequest | None = None,
    calibration_mode: Mode = Mode.CLASS,
    on_line: OnLine | None = None,
    stdin: int | None = None,
    live: Feed | None = None,
    machines: Machines | None = None,
    engine: Engine | None = None,
) -> Summary:
    """Run a spec and write its record below `output`; `on_line` hears what a command's workers print, its rank 0 reads
    from the descriptor `stdin`, `live` hears how it goes, and `machines` are what it is spread over, as the
    engine finds them.

    Raises SpecError and MissingRequirementError before anything is made, and RunStoppedError when the run ended early.
    """
    require_iterations(experiment)
    plan = plan_to_run(experiment, say=progress.say)
    if machines is not None:
        plan = spread_over(plan, machines)
    require(plan)
    capture = capture or CaptureRequest()
    ports = captured_links(plan.links, capture.links)
    if ports:
        require_dumpcap()
    return _Run(
        plan,
        output=output,
        progress=progress,
        captured=ports,
        snap_bytes=capture.snap_bytes,
        calibration_mode=calibration_mode,
        on_line=on_line,
        stdin=stdin,
        live=live,
        engine=engine,
    ).execute()


def require_iterations(experiment: Experiment) -> None:
    """Raise SpecError for a workload that a run could not judge."""
    workload = experiment.workload
    if not (workload.phase_lengths().get("measured") or workload.judged_by_links_alone()):
        raise SpecError(
            f"workload: {workload.kind} has no iterations that a run could judge; `testbed bench` runs what has none"
        )


class _Run:
    def __init__(
        self,
        plan: Plan,
        *,
        output: Path,
        progress: Announcer,
        captured: Mapping[str, Port],
        snap_bytes: int,
        calibration_mode: Mode,
        on_line: OnLine | None,
        stdin: int | None,
        live: Feed | None,
        engine: Engine | None,
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.live = live
        self.stdin = stdin
        self.on_line = on_line
        self.captured = captured
        self.snap_bytes = snap_bytes
        self.progress = progress
        self.run_id = new_run_id()
        experiment = plan.experiment
        # Before the record is begun: it may measure a codec, which a machine may not be able to.
        predicted = predict_run(plan, expected_error(), contending_codec_times(plan))
        self.writer = RecordWriter(
            output / f"{experiment.name}-{experiment.sha256()[:8]}-{self.run_id}",
            on_rows=None if live is None else live.rows,
        )
        self.found = RunResults(
            plan=plan,
            run_id=self.run_id,
            started_at=datetime.now(UTC),
            epoch_s=time.monotonic(),
            writer=self.writer,
            calibration=Calibration(mode=calibration_mode),
            setup=setup_text(experiment),
            code_changed=code_changed(),
            predicted=predicted,
        )
        self.environment = {**environment.describe(), "decided": plan.decided}
        if (files := program_sha256(experiment)) is not None:
            self.environment["program_sha256"] = files
        if plan.spread is not None:
            self.environment["num_machines"] = len(plan.spread.machines)
        self.status_file = StatusFile(self._status(), progress, *([live] if live is not None else []))

    def execute(self) -> Summary:
        self.writer.write_spec(self.plan.experiment.to_yaml())
        planned = self.plan.to_json()
        self.writer.write_plan(planned)
        if self.live is not None:
            self.live.begin(
                planned,
                self.plan.experiment,
                run_id=self.run_id,
                setup=self.found.setup,
                epoch_s=self.found.epoch_s,
            )
        self.writer.write_environment(self.environment)
        if self.plan.dilation_text:
            self.progress.say(self.plan.dilation_text)
        try:
            # The port first: that it is taken, by another run say, shows before anything is made.
            with (
                closing(self._exporter()) as exporter,
                session(
                    self.plan,
                    run_id=self.run_id,
                    log_directory=self.writer.logs,
                    on_phase=self.status_file.phase,
                    calibration_mode=self.found.calibration.mode,
                    engine=self.engine,
                ) as bench,
            ):
                self.found.overhead_s = bench.overhead_s
                self._work(bench, exporter)
        except (TestbedError, Interrupted) as error:
            raise RunStoppedError(self._finish(_end_of(error))) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is finished and says so
            # The run is reported with what ended it first; whatever removing the rest met with comes after it.
            cause = _first_cause(error) or self._own_failure(error)
            raise RunStoppedError(self._finish(_end_of(cause))) from cause
        summary = self._finish(COMPLETED)
        self.status_file.phase("report")
        write_report(load(self.writer.directory))
        return summary

    def _own_failure(self, error: Exception) -> RunFailedError:
        """An error that nobody has foreseen; its traceback is kept with the record."""
        log = self.writer.logs / "testbed.log"
        log.write_text("".join(traceback.format_exception(error)))
        return RunFailedError(f"the testbed itself failed: {type(error).__name__}: {error} (traceback in {log})")

    def _finish(self, end: End) -> Summary:
        self.found.code_changed |= code_changed()
        if self.found.code_changed:
            self.environment["code_sha256"] = None  # of no version, so that no other run is taken for the same
        self.writer.write_environment(self.environment)
        summary = summarize(self.found.facts(end))
        self.writer.finish(summary)
        if self.live is not None:
            self.live.end(summary)
        return summary

    def _status(self) -> RunStatus:
        experiment, now = self.plan.experiment, self.found.started_at
        workload = experiment.workload
        return RunStatus(
            run_id=self.run_id,
            name=experiment.name,
            workload=f"{workload.kind}: {workload.command.text}" if workload.command is not None else workload.kind,
            num_workers=experiment.workers,
            num_links=len(self.plan.directions),
            dilation=self.plan.clock.dilation,
            started_at=now,
            record=str(self.writer.directory.absolute()),
            phase_since=now,
        )

    def _exporter(self) -> Exporter:
        experiment = self.plan.experiment
        port = experiment.metrics.port
        exporter = Exporter(
            port, run_id=self.run_id, information={"name": experiment.name}, dilation=self.plan.clock.dilation
        )
        self.status_file.metrics_at(exporter.url)
        if port == "auto" and exporter.port != PORT:
            self.progress.say(f"metrics: {exporter.url} (port {PORT} is taken)")
        return exporter

    def _work(self, bench: Session, exporter: Exporter) -> None:
        """Everything between calibration and tear-down."""
        found = self.found
        found.calibration = bench.calibration
        found.underlay.append(bench.underlay)
        self.writer.write_calibration(found.calibration.to_json())
        self.writer.flush()  # the first table loads what writes them: now, and not beside workers that compute
        read_back = bench.deployment.read_back()
        runtime = bench.runtime.describe()
        recorder = Recorder(
            self.plan,
            epoch_s=found.epoch_s,
            writer=self.writer,
            exporter=exporter,
            progress=self.status_file,
            links=bench.links,
            observations=found.observations,
            workers=lambda: bench.deployment.working,
            processes=bench.deployment.processes,
            hosts=lambda: {name: host.pid for name, host in bench.deployment.hosts.items()},
            on_line=self.on_line,
        )
        bench.links.accept(recorder.on_link_changes)
        server = self._start_prometheus(bench, exporter, recorder)
        self.status_file.phase("start workers")
        begun_s = time.monotonic()
        interval_s = self.plan.experiment.metrics.interval_s
        directory = self.writer.directory / "captures"
        if self.plan.aggregators:
            statuses = bench.deployment.aggregator_statuses
            exporter.watch_aggregators(scraped_aggregators(self.plan, statuses, run_id=self.run_id))
        with (
            capturing(bench.deployment.hosts, self.captured, directory, snap_bytes=self.snap_bytes) as captures,
            LinkSampler(
                bench.deployment, interval_s=interval_s, on_sample=recorder.on_samples, on_probe=recorder.on_probe
            ) as sampler,
            closing(RunQueueWatch(lambda: bench.deployment.working | bench.deployment.serving)) as run_queue,
        ):
            recorder.sampler = sampler
            bench.links.own_changes = sampler.own_changes
            sampler.begin_watching()
            recorder.run_queue = run_queue
            recorder.gradient_threads = self._gradient_threads(bench)
            recorder.watched.append(captures.check)
            if self.live is not None:
                recorder.watched.append(partial(self.live.interference, found.observations.interference))
            exporter.watch_lateness(sampler.delay_counters)
            try:
                bench.work(recorder, timeout_s=WORK_TIMEOUT_S, stdin=self.stdin)
            finally:
                bench.links.close()  # while the sampler is there, which tells its changes from those of others
                exporter.watch_lateness(dict)
                found.redirected = redirections(bench.redirected)
                found.aggregation_lost = aggregation_losses(bench.aggregation_lost)
        if server is not None:
            self.status_file.phase("compare with Prometheus")
            ended_s = time.monotonic()
            found.prometheus = compare(
                server,
                self.writer.frame("links"),
                epoch_s=found.epoch_s,
                clock_offset_s=exporter.clock_offset_s,
            )
            server.stop()
            found.overhead_s["prometheus"] += time.monotonic() - ended_s
        found.captures = captures.results
        scheduled = [change for change in self.plan.experiment.changes if isinstance(change, ScheduledChange)]
        found.num_changes_not_reached = sum(not bench.links.is_reached(change.at_s) for change in scheduled)
        if found.observations.first_iteration_s is not None:
            start_s = found.observations.first_iteration_s - begun_s
            found.overhead_s["start"] = start_s - found.observations.reading_s
        found.aggregators = bench.deployment.aggregator_reports
        found.differences = bench.deployment.differences()
        self.environment |= {"runtime": runtime, "read_back": read_back, "wake_up_limit_us": wake_up_limit_us()}
        if bench.machines is not None:
            found.underlay.append(bench.machines.measure())
            self.environment["underlay"] = [[asdict(each) for each in measured] for measured in found.underlay]

    def _gradient_threads(self, bench: Session) -> GradientThreads | None:
        experiment = self.plan.experiment
        if experiment.stack is not None and experiment.stack.polls:
            return None
        return GradientThreads(
            lambda: bench.deployment.working, lambda: bench.deployment.serving, limited=list(self.plan.quotas)
        )

    def _start_prometheus(self, bench: Session, exporter: Exporter, recorder: Recorder) -> PrometheusServer | None:
        """If the spec asks for it. It ends with the run."""
        requested = self.plan.experiment.metrics.prometheus
        if requested is None or exporter.port is None:
            return None
        begun_s = time.monotonic()
        server = PrometheusServer(
            bench.state,
            record=self.writer.directory,
            log_directory=self.writer.logs,
            target_port=exporter.port,
            port=requested.port,
        )
        self.found.overhead_s["prometheus"] = time.monotonic() - begun_s
        recorder.watched.append(server.check)
        self.progress.say(f"Prometheus: {server.url} (alerts: {server.url}/alerts)")
        return server


def _end_of(error: TestbedError | Interrupted) -> End:
    """The end of a run as the verdict gets it."""
    if isinstance(error, Interrupted):
        return End("failed", f"interrupted by {error}")
    if isinstance(error, CalibrationError):
        return End("not calibrated", str(error))
    return End("unsupported" if isinstance(error, MissingRequirementError) else "failed", str(error))


def _first_cause(error: BaseException) -> TestbedError | Interrupted | None:
    """The first of ours among those in whose handling this one was raised."""
    found, each = None, error.__context__
    while each is not None:
        found = each if isinstance(each, TestbedError | Interrupted) else found
        each = each.__context__
    return found
