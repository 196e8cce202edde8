"""The record of a run: one directory that says what was asked, what was measured and how far to trust it.

    <record>/
      spec.yaml           the resolved spec: every default spelled out
      plan.json           nodes, addresses, tc commands, expected bytes, predicted times
      environment.json    commit, versions, kernel, CPU, sysctls, tc read-back
      calibration.json    what each link was measured to do before the run
      iterations.parquet  one row per worker and iteration (ITERATION_SCHEMA)
      buckets.parquet     one row per worker, iteration and bucket (BUCKET_SCHEMA)
      links.parquet       one row per link direction and sample (LINK_SCHEMA)
      backlog.parquet     one row per probe of a link whose queue held packets (BACKLOG_SCHEMA)
      machine.parquet     one row per sample of the machine's cores and network code (MACHINE_SCHEMA)
      changes.parquet     one row per setting of a link direction that changed meanwhile (CHANGE_SCHEMA)
      summary.json        the contract for scripts: see Summary
      report.html         the same for people
      captures/<link>.pcapng  where `testbed run --capture` asked for it
      prometheus/         configuration, rules and data, where `testbed run --prometheus` asked for it
      logs/<process>.log

Times in the frames are wall seconds since the run's epoch (`summary.epoch_s` on CLOCK_MONOTONIC); with
dilation k, virtual time is wall time divided by k. Everything in `summary.json` is in virtual seconds.

:class:`RecordWriter` writes a record while the run goes on, :func:`load` reads a finished one.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import EnvironmentLacksError, SpecError

Outcome = Literal["valid", "degraded", "invalid", "failed", "unsupported"]
SCHEMA_VERSION: Final = 1

ITERATION_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "phase": pl.String,
    "index": pl.Int32,
    "start_s": pl.Float64,
    "forward_end_s": pl.Float64,
    "backward_compute_end_s": pl.Float64,
    "backward_end_s": pl.Float64,
    "optimizer_end_s": pl.Float64,
    "end_s": pl.Float64,
    "loss": pl.Float64,
    "num_samples": pl.Int32,
    "cpu_s": pl.Float64,
    "run_queue_delay_s": pl.Float64,
    "communication_run_queue_delay_s": pl.Float64,
    "slowdown": pl.Float64,
    "staleness": pl.Int32,  # updates that the parameters lacked when the gradient was made
    "forward_stall_s": pl.Float64,  # of the forward pass, waiting for gradients of the iteration before
}
_ITERATION_PARTS: Final = (
    ("backward", "forward_end_s", "backward_compute_end_s"),
    ("exposed communication", "backward_compute_end_s", "backward_end_s"),
    ("optimizer", "backward_end_s", "optimizer_end_s"),
    ("other", "optimizer_end_s", "end_s"),
)


def iteration_parts(row: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """What an iteration of one worker, a row of ITERATION_SCHEMA, consists of, without gaps: name, begin and end.

    What the forward pass waits for gradients is exposed communication; at its layers, but only the sum is known, which
    comes before the rest of the pass here.
    """
    begun_s = row["start_s"] + row["forward_stall_s"]
    parts = [("forward", begun_s, row["forward_end_s"])]
    if row["forward_stall_s"] > 0:
        parts.append(("exposed communication", row["start_s"], begun_s))
    return [*parts, *((name, row[begin], row[end]) for name, begin, end in _ITERATION_PARTS)]


BUCKET_SCHEMA: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "phase": pl.String,
    "index": pl.Int32,
    "sequence": pl.Int64,
    "size_bytes": pl.Int64,
    "enqueued_s": pl.Float64,
    "started_s": pl.Float64,
    "first_byte_s": pl.Float64,
    "done_s": pl.Float64,
    "payload_bytes": pl.Int64,
    "encode_s": pl.Float64,
    "decode_s": pl.Float64,
}
LINK_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "link": pl.String,  # "w0-s0"
    "node": pl.String,  # the sending node of this direction
    "port": pl.String,  # its interface
    "class_bytes": pl.Int64,  # of the HTB class or the relay, cumulative
    "class_packets": pl.Int64,
    "drops": pl.Int64,
    "overlimits": pl.Int64,
    "backlog_bytes": pl.Int64,
    "interface_bytes": pl.Int64,
    "rate_bps": pl.Float64,  # asked of the class at that moment
}
CHANGE_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,  # when the kernel had taken it
    "link": pl.String,
    "node": pl.String,  # the sending node of this direction
    "to": pl.String,
    "setting": pl.String,  # as in the spec, or "carrier"
    "before": pl.String,  # as a spec writes it: "100mbit"
    "after": pl.String,
    "rate_bps": pl.Float64,  # in force from now on
    "source": pl.String,  # schedule, trace or hand
}
BACKLOG_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "link": pl.String,
    "node": pl.String,
    "elapsed_s": pl.Float64,
    "backlog_bytes": pl.Int64,
    "sent_bytes": pl.Int64,
    "due_bytes": pl.Float64,  # rate x time
}
MACHINE_SCHEMA: Final[dict[str, Any]] = {
    "at_s": pl.Float64,
    "ticks": pl.Int64,  # cumulative, as all of these
    "idle_ticks": pl.Int64,
    "steal_ticks": pl.Int64,
    "softnet_drops": pl.Int64,
    "softnet_squeezes": pl.Int64,
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantiles(_Part):
    """Of a sample, in virtual seconds."""

    median: float
    p10: float
    p90: float


class LossValues(_Part):
    """Mean over workers."""

    first: float | None
    """None where the loss is not a finite number: training has diverged."""
    last: float | None
    end: float | None = None
    """Mean over the last tenth of the measured iterations: batches differ."""


class DelayLine(_Part):
    """What the delay daemon did on one direction over the measured iterations; wall seconds."""

    num_packets: int
    """A super-frame is one, except on links with loss."""
    num_lost: int
    """By the loss asked for."""
    num_dropped: int
    """By a full buffer: an error."""
    num_marked: int = 0
    """By ECN."""
    late_median_s: float | None
    """How much later than asked packets were let go; None without packets."""
    late_p99_s: float | None
    late_max_s: float | None


class BacklogSummary(_Part):
    """What a direction sent while its queue surely held packets; wall seconds."""

    num_probes: int
    watched_s: float
    due_bytes: float
    """rate x time."""
    sent_bytes: int
    held_share: float
    """Of the watched time, that in which what was sent was within one packet (or super-frame) and 1 % of what was
    due."""
    chance: float
    """So much of the difference, relative, may be chance: what is sent comes in whole packets (three standard
    deviations)."""


class MachineSummary(_Part):
    """The machine over the measured iterations."""

    idle_share: float
    """Of all cores' time."""
    steal_share: float
    saturated_share: float | None
    """Of the time in which a bucket was in service, that in which less than 5 % of the cores' time was idle; None: no
    bucket moved."""
    softnet_drops: int
    """Packets that found the kernel's input queue full."""
    softnet_squeezes: int


class LinkSummary(_Part):
    """One direction of one link over the measured iterations."""

    name: str
    from_: str = Field(alias="from")
    to: str
    rate_bps: float
    delay_s: float
    measured_rate_bps: float | None
    measured_delay_s: float | None
    bytes: int
    """Counted by what shapes the link, headers included, pure acknowledgements and background traffic taken out (as far
    as they have one path; a command's acknowledgements are not known, and in it)."""
    expected_bytes: int | None
    """What the collective's schedule sends, with headers; None: a whole stack runs and its schedule is not
    known."""
    acknowledgement_bytes: int
    """Pure acknowledgements, from the kernel's count of segments without data."""
    retransmitted_bytes: int
    background_bytes: int | None = 0
    """Of background flows, headers included, not in `bytes`; None where they could have taken another of several equal
    paths."""
    background_utilization: float | None = 0.0
    """The part of `utilization_mean` that is theirs."""
    utilization_mean: float | None
    """class bytes x 8 / (rate x measured time): 0 to 1; None on an unshaped link, as fast as the machine."""
    utilization_busy: float | None
    """The same while at least one bucket is in service on any worker; of a command, while any link carries over 1 %
    of its rate."""
    drops: int
    delay_line: DelayLine | None = None
    """None where no daemon makes the delay."""
    backlog: BacklogSummary | None = None
    """None where its queue never held enough to tell."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class BackgroundSummary(_Part):
    """One background flow over the measured iterations; on the wire, headers included."""

    from_: str = Field(alias="from")
    to: str
    kind: str
    asked: str
    """As the plan says it."""
    offered_bps: float | None
    """Asked for on average; None: as much as it gets."""
    sent_bps: float
    received_bps: float
    blocked_share: float
    """Of the packets that were due, those that did not fit the source's own link."""
    late_share: float
    """Those left out because the source did not get to run in time."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class TenantSummary(_Part):
    """Another job at an aggregator, from the start of the workers to their end."""

    workers: list[str]
    num_slots: int
    size_bytes: int
    reductions: int
    """That all of its workers have the sum of."""
    chunks_sent: int
    """By all of its workers, repetitions included."""


class AggregatorSummary(_Part):
    """One switch that adds, from the first joining to the last leaving."""

    name: str
    at: str
    """Its switch."""
    dataplane: str
    children: list[str] = []
    """Workers, and aggregators below it, whose contributions it added."""
    parent: str | None = None
    """The aggregator above, which it sent its sums to."""
    chunks: int
    """Whose sum was given out."""
    duplicates: int
    """Contributions that came again."""
    stale: int
    """Contributions of another epoch, or older than what their slot holds."""
    bad: int
    """Datagrams that were none of the job's."""
    repeated: int
    """Chunks done again in the measured iterations because an exponent was guessed too low; the most of any worker."""
    retransmitted: int
    """Chunks that workers sent again in the measured iterations because no result came; of all workers."""
    partial: int = 0
    """Chunks of the measured iterations whose sum was given out without a straggler's contribution, and scaled up."""
    tenants: list[TenantSummary] = []
    """Other jobs that it served; `chunks`, `duplicates`, `stale` and `bad` count all jobs."""
    lost: str | None
    """Why it stopped adding; None: it did not."""


class WorkerSummary(_Part):
    """One worker over the measured iterations; virtual seconds."""

    name: str
    compute_time_s: float
    """Median; with what a slowdown added."""
    slowdown_mean: float
    """How many times as long its computing was made to take; 1: not at all."""
    last_share: float
    """Of the iterations, those in which it was the last to hand over its last gradient."""
    held_up_s: float
    """By how much it then came later than the last but one, per iteration, the others' counting as 0: the time for
    which everyone waited for this worker alone."""


class ChangeSummary(_Part):
    """What became of some directions' setting in one go, or by one trace; virtual seconds."""

    at_s: float
    """Since the first measured iteration began; negative before it. Of a trace: its first step."""
    links: str
    """`w1 → s0`, `w1 ↔ s0` for both of its directions, or several."""
    setting: str
    before: str
    after: str
    """As a spec writes it; of a trace the last value."""
    source: Literal["schedule", "trace", "hand"]
    num_steps: int = 1
    """Of a trace, how many of its steps were reached."""


class CaptureSummary(_Part):
    """The packets of one link, both directions, as `testbed run --capture` wrote them."""

    link: str
    file: str
    """Below the record's directory."""
    num_packets: int
    """A super-frame is one."""
    num_dropped: int
    """Missed because the capture did not keep up."""


class PrometheusSummary(_Part):
    """What the run's own Prometheus saw."""

    data: str
    """Below the record's directory; `prometheus --storage.tsdb.path` opens it again."""
    num_scrapes: int
    num_series: int
    """Of the run at its end."""
    compared_s: float
    """Over the last so many wall seconds each scrape of each link's counters was compared with the record's."""
    alerts: dict[str, int] = {}
    """Those that fired, by name: about how many directions, workers or other things."""
    differences: list[str]
    """Where they were not the same within one scrape; none is as it should be."""


class AllReduceSummary(_Part):
    """One iteration's worth of all-reduce, all buckets together."""

    size_bytes: int
    """Sum of the buckets."""
    time_s: float
    """Median over iterations of the time during which at least one bucket was in service on the slowest
    worker."""
    bound_s: float
    """The physical bound of the collective at the goodput of the links."""
    predicted_s: float
    """The alpha-beta prediction, or the time of the `bottleneck`."""
    bottleneck: str | None = None
    """The link that workers share, `s0 -> s1`, whose bytes take longer than the alpha-beta model's rounds."""


class CommandExit(_Part):
    """How one worker's command ended."""

    name: str
    status: int
    """Negative: the signal that ended it."""
    time_s: float
    """From the start of the first worker to its end, as noticed."""


class CommandSummary(_Part):
    """A program of the user's in every worker (workload `command`, `testbed exec`)."""

    argv: list[str]
    backend: str | None
    """That was to take the place of the one the script names."""
    redirected: list[str]
    """What process groups were asked to be when it did: `gloo`, `nccl`, `default`."""
    start_s: float
    """When the first worker was started: wall seconds since the run's epoch, as in the frames."""
    time_s: float
    """From then to the end of the last worker: what `links` and `machine` are measured over."""
    workers: list[CommandExit]


class CompressionSummary(_Part):
    """What compression did to the gradients of one iteration, and what it cost."""

    kind: str
    gradient_bytes: int
    """Without compression."""
    payload_bytes: float
    """What each worker handed to collectives, scales, indices and lengths included: mean over workers and
    iterations."""
    payload_ratio: float
    """payload_bytes / gradient_bytes."""
    traffic_ratio: float | None
    """Bytes that the workers' links carried, with headers, over what the same collective would have sent without
    compression. Gathered payloads travel to every worker, so that it grows with their number."""
    encode_s: float
    """CPU time of the codec before its last collective: mean over workers, median over iterations."""
    decode_s: float
    """The same after it."""


class SynchronisationSummary(_Part):
    """How far the workers' models were apart in the measured iterations."""

    kind: str
    every: int | None
    """Of local SGD: iterations from one averaging to the next."""
    num_exchanges: int | None
    """In which workers exchanged anything; None: each worker in each iteration, by itself."""
    staleness: dict[int, int]
    """How many gradients were made with parameters that lacked so many updates: of other workers, where servers apply
    them; of averaging, where each worker goes on by itself."""
    staleness_mean: float


class Summary(_Part):
    """summary.json, and what `testbed run --json` prints. Times are virtual seconds."""

    schema_version: int = SCHEMA_VERSION
    name: str
    run_id: str
    spec_sha256: str
    started_at: str
    """Date and time of the start, ISO 8601 with its offset."""
    epoch_s: float
    """CLOCK_MONOTONIC at the zero of the frames' times."""
    outcome: Outcome
    reasons: list[str]
    num_workers: int
    num_iterations: int
    dilation: float
    iteration_time_s: Quantiles | None
    compute_time_s: float | None
    """Median over iterations of the mean over workers: forward, backward until the last gradient,
    optimizer."""
    exposed_communication_s: float | None
    """The same: from the last gradient computed to the last gradient reduced."""
    other_time_s: float | None
    """The same: data, bookkeeping, waiting at the end of the iteration."""
    compute_only_time_s: float | None
    """Median iteration of the same workers computing at the same time without communicating."""
    samples_per_s: float | None
    scaling_factor: float | None
    """compute_only_time_s / iteration_time_s.median; not capped, so noise may carry it past 1."""
    loss: LossValues | None
    parameters_sha256: str | None
    """Of the final parameters; the same on every worker, else the run has failed."""
    workers: list[WorkerSummary]
    links: list[LinkSummary]
    background: list[BackgroundSummary]
    machine: MachineSummary | None
    allreduce: AllReduceSummary | None
    compression: CompressionSummary | None = None
    synchronisation: SynchronisationSummary | None = None
    """None: workers exchanged gradients in every iteration."""
    command: CommandSummary | None = None
    """None: the workload is one of ours."""
    aggregators: list[AggregatorSummary] = []
    """Switches that added the gradients."""
    """None: nothing was compressed."""
    unshared_memory_bytes: list[int]
    """Of each worker at its end: what it does not share with the process it was forked from."""
    overhead_s: dict[str, float]
    """Wall seconds around the iterations: deploy, calibrate, start, tear_down."""
    captures: list[CaptureSummary] = []
    prometheus: PrometheusSummary | None = None
    """None: none was asked for, or the run ended before its end."""
    changes: list[ChangeSummary] = []
    """Of the links, while the run went on; all of them are in changes.parquet."""
    num_changes_not_reached: int = 0
    """Scheduled for later than the run's end."""
    record: str
    """Path of the record."""


FRAMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "iterations": ITERATION_SCHEMA,
    "buckets": BUCKET_SCHEMA,
    "links": LINK_SCHEMA,
    "backlog": BACKLOG_SCHEMA,
    "machine": MACHINE_SCHEMA,
    "changes": CHANGE_SCHEMA,
}
DOCUMENTS: Final = ("plan", "environment", "calibration")

_FLUSH_INTERVAL_S: Final = 5.0
# Flushing rewrites the whole file; in a long run this bounds its share of the time to 2 %.
_FLUSH_SPACING: Final = 50.0


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the file system refuses, told as what it is."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentLacksError(f"cannot write {path}: {reason}; records need a writable directory") from error


def replace_text(path: Path, text: str) -> None:
    """Write so that a reader, or a crash, sees the old text or the new one and nothing between.

    Raises EnvironmentLacksError.
    """
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """The same with bytes."""
    temporary = path.with_name(f".{path.name}.new")
    with _writing(path):
        temporary.write_bytes(data)
        temporary.replace(path)


class RecordWriter:
    """Writes a record while the run goes on. Any thread may append; a crash loses the last seconds.

    Every method that writes raises EnvironmentLacksError when the file system refuses.
    """

    def __init__(self, directory: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        with _writing(directory):
            self.logs.mkdir(parents=True, exist_ok=True)
        self._now_s = now_s
        self._rows: dict[str, list[Mapping[str, object]]] = {name: [] for name in FRAMES}
        self._frames = {name: pl.DataFrame(schema=dict(schema)) for name, schema in FRAMES.items()}
        self._num_written = dict.fromkeys(FRAMES, -1)  # rows on disk; -1: no file yet
        self._rows_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._next_flush_s = now_s() + _FLUSH_INTERVAL_S

    def write_spec(self, text: str) -> None:
        """The resolved spec as YAML."""
        replace_text(self.directory / "spec.yaml", text)

    def write_plan(self, plan: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("plan", plan)

    def write_environment(self, environment: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("environment", environment)

    def write_calibration(self, calibration: Mapping[str, object]) -> None:
        """Plain JSON data."""
        self._write_json("calibration", calibration)

    def append_iterations(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of ITERATION_SCHEMA; others are left out."""
        self._append("iterations", rows)

    def append_buckets(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of BUCKET_SCHEMA; others are left out."""
        self._append("buckets", rows)

    def append_links(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of LINK_SCHEMA; others are left out."""
        self._append("links", rows)

    def append_backlog(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of BACKLOG_SCHEMA; others are left out."""
        self._append("backlog", rows)

    def append_machine(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of MACHINE_SCHEMA; others are left out."""
        self._append("machine", rows)

    def append_changes(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows with the keys of CHANGE_SCHEMA; others are left out."""
        self._append("changes", rows)

    def frame(self, name: Literal["iterations", "buckets", "links", "backlog", "machine", "changes"]) -> pl.DataFrame:
        """Everything appended so far."""
        with self._flush_lock:
            self._absorb(name)
            return self._frames[name]

    def flush(self) -> None:
        """Write every frame to its file."""
        with self._flush_lock:
            started_s = self._now_s()
            for name in FRAMES:
                self._absorb(name)
                if self._num_written[name] != self._frames[name].height:
                    temporary = self.directory / f".{name}.parquet.new"
                    with _writing(self.directory / f"{name}.parquet"):
                        self._frames[name].write_parquet(temporary, compression="zstd")
                        temporary.replace(self.directory / f"{name}.parquet")
                    self._num_written[name] = self._frames[name].height
            ended_s = self._now_s()
            self._next_flush_s = ended_s + max(_FLUSH_INTERVAL_S, _FLUSH_SPACING * (ended_s - started_s))

    def finish(self, summary: Summary) -> None:
        """Complete the record. A document never written becomes `{}`: the run ended before it was known."""
        self.flush()
        for name in DOCUMENTS:
            if not (self.directory / f"{name}.json").exists():
                self._write_json(name, {})
        replace_text(self.directory / "summary.json", summary.model_dump_json(by_alias=True, indent=2) + "\n")

    def _append(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        new = [{column: row[column] for column in FRAMES[name]} for row in rows]
        with self._rows_lock:
            self._rows[name] += new
        # Whoever finds a flush in progress leaves it alone: a sampler must not wait for the disk.
        if self._now_s() >= self._next_flush_s and not self._flush_lock.locked():
            self.flush()

    def _absorb(self, name: str) -> None:
        with self._rows_lock:
            rows, self._rows[name] = self._rows[name], []
        if rows:
            self._frames[name] = self._frames[name].vstack(pl.DataFrame(rows, schema=dict(FRAMES[name])))

    def _write_json(self, name: str, document: Mapping[str, object]) -> None:
        text = json.dumps(document, indent=2, allow_nan=False)
        replace_text(self.directory / f"{name}.json", text + "\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A finished run, read from its directory."""

    path: Path
    summary: Summary
    spec_yaml: str
    plan: dict[str, Any]
    environment: dict[str, Any]
    calibration: dict[str, Any]
    iterations: pl.DataFrame
    buckets: pl.DataFrame
    links: pl.DataFrame
    backlog: pl.DataFrame
    machine: pl.DataFrame
    changes: pl.DataFrame


def load(path: Path) -> Record:
    """Read a record. Raises SpecError that says what the directory lacks or which file cannot be read."""
    if not path.is_dir():
        raise SpecError(f"{path}: no such directory; give the directory of a record, as `testbed run` prints it")
    frames, documents = [f"{name}.parquet" for name in FRAMES], [f"{name}.json" for name in DOCUMENTS]
    needed = ["spec.yaml", "summary.json", *documents, *frames]
    missing = [name for name in needed if not (path / name).is_file()]
    if len(missing) == len(needed):
        raise SpecError(f"{path} is not a record: it has neither spec.yaml nor summary.json")
    if "summary.json" in missing and "spec.yaml" not in missing:
        raise SpecError(f"{path}: the run did not finish (no summary.json); its logs are in {path / 'logs'}")
    if missing:
        raise SpecError(f"{path} is not a whole record: {', '.join(missing)} missing")
    return Record(
        path=path,
        summary=_load_summary(path / "summary.json"),
        spec_yaml=_load_text(path / "spec.yaml"),
        plan=_load_json(path / "plan.json"),
        environment=_load_json(path / "environment.json"),
        calibration=_load_json(path / "calibration.json"),
        iterations=_load_frame(path / "iterations.parquet", ITERATION_SCHEMA),
        buckets=_load_frame(path / "buckets.parquet", BUCKET_SCHEMA),
        links=_load_frame(path / "links.parquet", LINK_SCHEMA),
        backlog=_load_frame(path / "backlog.parquet", BACKLOG_SCHEMA),
        machine=_load_frame(path / "machine.parquet", MACHINE_SCHEMA),
        changes=_load_frame(path / "changes.parquet", CHANGE_SCHEMA),
    )


def results_of(output: Path, *, name: str, spec_sha256: str) -> list[Summary]:
    """The summaries of every run of one resolved spec below `output`, oldest first. What cannot be read is not one."""
    found = []
    for path in output.glob(f"{name}-{spec_sha256[:8]}-*/summary.json"):
        with suppress(SpecError):
            summary = _load_summary(path)
            if summary.spec_sha256 == spec_sha256:
                found.append(summary.model_copy(update={"record": str(path.parent)}))
    return sorted(found, key=lambda summary: (summary.started_at, summary.run_id))


def _load_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error


def _load_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_load_text(path))
    except ValueError as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise SpecError(f"{path} cannot be read: it holds no JSON object")
    return document


def _load_summary(path: Path) -> Summary:
    document = _load_json(path)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SpecError(f"{path}: schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    try:
        return Summary.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{path}: {field}: {first['msg']}") from error


def _load_frame(path: Path, schema: Mapping[str, Any]) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if dict(frame.schema) != dict(schema):
        raise SpecError(f"{path} has other columns than a record of this version: {', '.join(frame.columns)}")
    return frame
