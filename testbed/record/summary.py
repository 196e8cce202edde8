"""summary.json: what a run has measured and how far to trust it, for scripts."""

import re
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from testbed.experiment.synchronisation.base import SYNCHRONISATIONS

Outcome = Literal["valid", "degraded", "invalid", "failed", "unsupported"]
STANDING: Final[tuple[Outcome, ...]] = ("valid", "degraded")
"""Outcomes of runs whose numbers stand."""
SCHEMA_VERSION: Final = 4


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantiles(_Part):
    """Mean and quantiles of a sample, in virtual seconds."""

    mean: float
    """The parts of an iteration add up to it."""
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
    """What the delay daemon did on one direction over the measured iterations; virtual seconds."""

    num_packets: int
    """A super-frame is one, except on links with loss."""
    num_lost: int
    """By the loss requested."""
    num_dropped: int
    """By a full buffer: an error."""
    num_marked: int = 0
    """By ECN."""
    late_median_s: float | None
    """How much later than requested packets were let go; None without packets."""
    late_p99_s: float | None
    late_max_s: float | None
    overdue_s: float = 0.0
    """For how long packets were later than the verdict allows, in all that the line's program serves, as far as they
    were due on this line first: such times of all lines add up."""


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
    others_share: float | None = None
    """Of the same, what programs used that do not belong to the run. None: not known."""
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
    """TCP's goodput in calibration as a line rate, of the direction `rate_measured_on`; None: not measured."""
    measured_delay_s: float | None
    """One way, in calibration; always of this direction itself."""
    rate_measured_on: str | None = None
    """`w0 -> s0`: this direction, or the one that was measured for all of its class; None: not measured."""
    rate_from_cache: bool = False
    """Whether that was before this run, on a link of the same class (`--calibrate cached`)."""
    bytes: int
    """Counted by what shapes the link, headers included, pure acknowledgements and background traffic taken out (as far
    as they have one path; a command's acknowledgements are not known, and in it)."""
    expected_bytes: int | None
    """What the collective's schedule sends, with headers, and `input_bytes`; None: a baseline library runs and its
    schedule is not known."""
    input_bytes: int | None = 0
    """Of these, what reads batches from the storage node; None where that could take another of several equal paths."""
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
    """The same while at least one bucket is under way: from the moment the last of its members has handed it over to
    the moment the last of them has its result; to a parameter server, from the moment the first has; of a command,
    while any link carries over 1 % of its rate. None on an unshaped link, and where the time of the all-reduce is
    withheld."""
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
    requested: str
    """As the plan says it."""
    offered_bps: float | None
    """Requested on average; None: as much as it gets."""
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


class SlotLatency(_Part):
    """How long uses of aggregator slots took in the measured iterations, from a chunk's first sending by a worker until
    its sum was there, repetitions and waiting for other workers included; of all workers below. Virtual seconds."""

    num_chunks: int
    median_s: float
    """Half of them took no longer; known to a quarter, as the next one: where a bucket ends."""
    p99_s: float
    edges_s: list[float]
    """From the first to the last bucket that holds any, where each begins, and where the last one ends."""
    counts: list[int]
    """Of each bucket."""


class AggregatorSummary(_Part):
    """One aggregating switch, from the first worker's joining to the last one's leaving."""

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
    """Contributions of another epoch, or older than what their aggregator slot holds."""
    bad: int
    """Datagrams that were none of the job's."""
    repeated: int | None
    """Chunks done again in the measured iterations because an exponent was guessed too low; the most of any worker.
    None, here and in the next two: its workers report no counts, as those of a command and of workload `allreduce`."""
    retransmitted: int | None
    """Chunks that workers sent again in the measured iterations because no result came; of all workers."""
    partial: int | None = 0
    """Chunks of the measured iterations whose sum was given out without a straggler's contribution, and scaled up."""
    payload: str = "int32"
    """What crosses its links of each float."""
    wait_median_s: float | None = None
    """Half of the chunks had their last contribution sooner than this after their first; powers of two. None: none was
    added, or nobody could ask any more."""
    wait_p99_s: float | None = None
    slot_latency: SlotLatency | None = None
    """None: nothing came back in the measured iterations, the time of the all-reduce is withheld (`allreduce.missing`
    says why), or the record was made before this was counted."""
    last: str | None = None
    """Whose contribution was the last most often: the straggler, if it was so much more often than others."""
    last_share: float = 0.0
    """Of the chunks."""
    tenants: list[TenantSummary] = []
    """Other jobs that it served; `chunks`, `duplicates`, `stale` and `bad` count all jobs."""
    lost: str | None
    """Why it stopped adding; None: it did not."""


class WorkerSummary(_Part):
    """One worker over the measured iterations; virtual seconds."""

    name: str
    compute_time_s: float
    """Forward and backward pass: mean; with what a slowdown added."""
    compute_alone_s: float | None
    """The same, plus the optimizer, while no other worker did anything; None: not measured."""
    compute_contention: float | None
    """Forward, backward and optimizer in the measured iterations over the same alone, slowdowns taken out."""
    slowdown_mean: float
    """How many times as long its computing was made to take; 1: not at all."""
    last_share: float
    """Of the iterations in which workers exchange (with local SGD one in so many; none where they do not wait for each
    other), those in which it was the last to hand over its last gradient."""
    straggler_wait_s: float
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
    source: Literal["schedule", "trace", "manual"]
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
    """Where they were not the same; none is as it should be."""


class AllReduceSummary(_Part):
    """One iteration's worth of all-reduce, all buckets together."""

    size_bytes: int
    """Sum of the buckets."""
    time_s: float | None
    """Median over iterations of the time during which at least one bucket that all of its members had handed over was
    in service on the slowest worker; None: it is withheld, and `missing` says why."""
    bound_s: float
    """Of the task: the least that any exchange over the workers' own links needs, without help from switches or
    servers (testbed.plan.bounds)."""
    schedule_bound_s: float
    """Of the schedule: what its bytes need at least on the most loaded link. Below `bound_s` where switches or servers
    bring links of their own."""
    predicted_s: float
    """The cost model's prediction, or the time of the `bottleneck`."""
    bottleneck: str | None = None
    """The link that workers share, `s0 -> s1`, that decides: it needs more time for its bytes than any worker's own."""
    missing: str | None = None
    """Why no time is given: too much of it may be this machine's, while iterations stand."""
    span_s: float | None = None
    """Median over iterations of the time during which a bucket was in service on any worker: what links had for its
    bytes. Longer than `time_s` where workers begin at different times; None where that is withheld, and in records
    made before it was measured."""


class WaitingSummary(_Part):
    """By how much, at most, threads that waited for a core may have lengthened communication in the measured
    iterations (testbed.verdict.waiting). Shares are 0 to 1, and of the mean or of the median, whichever is more; times
    are virtual seconds."""

    of_exposed: float
    """Of exposed communication; 0 where the iterations cannot have lost more than a hundredth."""
    of_communication: float = 0.0
    """Of all communication, hidden or not; 0 where workers do not wait for each other."""
    of_iterations: float = 0.0
    """Of the iterations: what is hidden does not lengthen them."""
    waited_s: float = 0.0
    """While something was exchanged and at least one thread waited; where waits could not be traced, for how long an
    average worker waited."""
    by_host_s: dict[str, float] = {}
    """Of these, those in which a thread of that host did."""

    @property
    def share(self) -> float:
        """Of exposed or of all communication, whichever is more."""
        return max(self.of_exposed, self.of_communication)


class PredictionSummary(_Part):
    """What the cost model said of the iterations before they were measured; virtual seconds. Errors are predicted over
    measured, less 1."""

    iteration_time_s: float | None
    """The mean; None: not predicted, and `missing` says why."""
    missing: str | None
    iteration_error: float | None
    """Against the mean that was measured; None: one of the two is not known."""
    allreduce_error: float | None
    """Of `allreduce.predicted_s`, against `allreduce.time_s`."""
    expected_error: float | None
    """The mean magnitude where predictions were compared with measurements; it holds where `outside` is empty. None:
    nobody has compared any with this machine."""
    expected_error_source: Literal["validation", "residuals of the fit"] | None
    num_points: int
    """That the expected error was found by."""
    outside: list[str]
    """In what the run lies beyond what predictions were compared with."""
    fitted_at: str | None
    """When the costs of hosts were fitted (ISO 8601); None: they are defaults."""


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
    """The backend that process groups requested when it did: `gloo`, `nccl`, `default`."""
    launcher: bool
    """Whether it ran in the first worker alone, to start processes on the others itself."""
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
    """Bytes that workers and servers sent, with headers, over what they would have sent by the same collective without
    compression. It grows with the workers' number where every worker gathers all payloads."""
    encode_s: float
    """CPU time of the codec before its last collective, in virtual seconds: real ones / dilation, or real ones with
    `host_cost: real`, whatever share of a core the worker has. Mean over workers, median over iterations."""
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


class PaceSummary(_Part):
    """How computing kept the pace that it was given, or that a replayed trace has."""

    pace_s: float
    """How long the computing of an iteration should last, slowdowns included: mean over workers and iterations."""
    num_iterations: int
    """Measured ones."""
    num_overrun: int
    """Those in which a worker handed over a gradient later than it was due, by more than 2 % of the pace."""
    overrun_share_mean: float
    """By how much of the pace the latest gradient of the latest worker was late: mean over iterations."""
    overrun_max_s: float
    """The most by which any gradient was late."""
    compute_only_overrun_share: float | None = None
    """By how much of the pace computing all at once without communication was late, on the worker where it was most:
    mean over its iterations; None without such iterations."""


class StagesSummary(_Part):
    """Where the time of the whole job went, from the launch of its workers to the end of its last iteration, in virtual
    seconds. Sums over iterations are over all that communicate, warm-up included, and means over workers
    (testbed.verdict.stages)."""

    wall_s: float
    """On the controller's clock, without what the testbed does for itself in between: iterations without communication,
    reading counters."""
    num_iterations: int
    time_to_start_s: float
    """`start_s` and `reading_s`."""
    start_s: float
    """From the launch until the last worker had started; and what sets up its communication later."""
    reading_s: float
    """From the storage node, before the first iteration: until the last worker had all."""
    input_s: float
    """That iterations waited for their batches."""
    host_to_device_s: float
    """That they waited for the copying of these."""
    forward_s: float
    backward_s: float
    waiting_s: float
    """For slower workers' gradients."""
    communication_s: float
    """That computing did not hide."""
    update_s: float
    """The optimizer's step."""
    unaccounted_s: float
    """`wall_s` less all stages: bookkeeping, and waiting in barriers."""


class StorageSummary(_Part):
    """What workers read from the storage node; payload, and virtual seconds."""

    requested: str
    """In words."""
    start_bytes: int
    """Before the first iteration, by all workers."""
    start_least_s: float
    """What the disk, or the most loaded link, needs for that."""
    batch_bytes: int
    """For each iteration, by each worker."""
    batch_least_s: float
    """What the disk, or the most loaded link, needs for everybody's."""
    batch_read_s: float | None
    """Reading one of the measured iterations, whether one waited for it or not: mean. None: there was none."""
    num_checked: int
    """Directions of links whose bytes before the first iteration were compared with what was read."""
    waited_share: float
    """For so much of the time in which it was read from, a thread of the node waited for a core, the one that waited
    longest."""


class Checks(_Part):
    """What was compared with the configuration, on how many of the `num_directions` of links, and what was not."""

    num_directions: int
    num_bytes: int
    """Directions whose bytes were compared with the schedule's."""
    num_rates: int
    """Directions with a measured rate, their own or that of their class."""
    num_rates_own: int
    """Directions whose own rate was measured, for this run."""
    num_delays: int
    """Directions whose own delay was measured."""
    num_gradient_threads: int | None = None
    """Threads that move gradients that the kernel ran before those that compute when the measured iterations ended;
    None: none were to, or this machine cannot."""
    not_checked: list[str]
    """What was not compared, and why."""


class Results(_Part):
    """Everything that a run has measured, before anybody judges it. Times are virtual seconds."""

    schema_version: int = SCHEMA_VERSION
    name: str
    run_id: str
    spec_sha256: str
    setup: str = ""
    """What was run, in a line for people; the spec is in the record."""
    computing: str = ""
    """What of computing is real and what is paced or replayed, in a line for people."""
    pace: PaceSummary | None = None
    """None: computing takes as long as it takes."""
    started_at: str
    """Date and time of the start, ISO 8601 with its offset."""
    epoch_s: float
    """CLOCK_MONOTONIC at the zero of the frames' times."""
    num_workers: int
    num_iterations: int
    replays_graph: bool = False
    """Whether what a worker computes and exchanges is a graph's part: what it waits for inside an iteration is exposed
    communication, and nobody waits at its end."""
    dilation: float = Field(gt=0)
    iteration_time_s: Quantiles | None
    """Mean over workers of the time from one start of an iteration to the next one's."""
    compute_time_s: float | None
    """Forward and backward pass, until the worker's own last gradient: mean over workers and iterations, as all of
    these parts, which add up to `iteration_time_s.mean`."""
    data_time_s: float | None
    """Until the batch is where it is computed with."""
    waiting_time_s: float | None
    """From the worker's own last gradient to the last worker's last gradient, as far as it waited."""
    exposed_communication_s: float | None
    """From the last worker's last gradient to the last reduced one, and what a forward pass waited for gradients."""
    optimizer_time_s: float | None
    other_time_s: float | None
    """Bookkeeping between the optimizer's end and the next iteration's start."""
    compute_only_time_s: float | None
    """Iteration of the same workers on the same cores, all at once, without communicating: mean of the slowest."""
    compute_alone_time_s: float | None
    """Iteration of one worker while all others wait: harmonic mean over workers."""
    compute_contention: float | None
    """Computing (forward, backward, optimizer) in the measured iterations over computing alone, of the worker where
    they differ most."""
    samples_per_s: float | None
    scaling_factor: float | None
    """T_n / (n T_1) in samples per second: compute_alone_time_s / iteration_time_s.mean (of workers that do not wait
    for each other, over the harmonic mean of theirs), where every worker computed as fast as alone; else None and
    `scaling_factor_missing` says why. Not capped."""
    scaling_factor_missing: str | None = None
    network_efficiency: float | None
    """compute_only_time_s / iteration_time_s.mean. Not capped. None, like that time, where other programs had too much
    of the cores meanwhile."""
    loss: LossValues | None
    parameters_sha256: str | None
    """Of the final parameters; the same on every worker, else the run has failed."""
    workers: list[WorkerSummary]
    links: list[LinkSummary]
    background: list[BackgroundSummary]
    machine: MachineSummary | None
    allreduce: AllReduceSummary | None
    waiting: WaitingSummary | None = None
    """What waiting for a core may have cost; None: no iteration was measured, or all workers wait by design."""
    prediction: PredictionSummary | None = None
    """None: nothing is exchanged that a model knows of."""
    compression: CompressionSummary | None = None
    """None: nothing was compressed."""
    synchronisation: SynchronisationSummary | None = None
    """None: workers exchanged gradients in every iteration."""
    command: CommandSummary | None = None
    """None: the workload is one of ours."""
    aggregators: list[AggregatorSummary] = []
    """Switches that added the gradients."""
    uss_bytes: list[int]
    """Of each worker at its end: what it does not share with the process it was forked from."""
    overhead_s: dict[str, float]
    """Wall seconds around the iterations: deploy, calibrate, start, tear_down."""
    captures: list[CaptureSummary] = []
    stages: StagesSummary | None = None
    """None: the run ended before its end, or its workload has no iterations of layers."""
    storage: StorageSummary | None = None
    """None: data are where they are needed."""
    prometheus: PrometheusSummary | None = None
    """None: none was requested, or the run ended before its end."""
    changes: list[ChangeSummary] = []
    """Of the links, while the run went on; all of them are in changes.parquet."""
    num_changes_not_reached: int = 0
    """Scheduled for later than the run's end."""
    changes_late_s: float = 0.0
    """How long after its time a change of the schedule or of a trace had been made in the measured iterations, at most;
    virtual."""
    record: str
    """Path of the record."""
    checked: Checks

    @property
    def in_step(self) -> bool:
        """Whether workers waited for each other in every exchange."""
        requested = self.synchronisation
        return requested is None or SYNCHRONISATIONS[requested.kind].in_step

    @property
    def ends_together(self) -> bool:
        """Whether no worker's iteration ends before the last worker's last gradient."""
        return self.in_step and not self.replays_graph


class Summary(Results):
    """summary.json, and what `testbed run --json` prints: the results and how far to trust them."""

    outcome: Outcome
    reasons: list[str]
    """Why it is not valid, the gravest first; empty where it is."""
    notes: list[str] = []
    """What a reader should know that calls no number in question."""

    @property
    def stands(self) -> bool:
        """Whether its numbers do, if with reservations."""
        return self.outcome in STANDING


def kind_of_reason(reason: str) -> str:
    """It without its numbers and what is in brackets: what it has in common with others of its kind."""
    return re.sub(r"\([^)]*\)|\d+(?:[.,]\d+)*", "", reason)


def magnitude_of_reason(reason: str) -> list[float]:
    """The numbers that it was measured to have, shares first: of reasons of one kind the gravest has the greatest.

    Numbers in names (`w7`) and limits, in brackets, are none of them.
    """
    numbers = re.findall(r"(?<![\w.,-])[+-]?(\d[\d,]*(?:\.\d+)?)( %)?", re.sub(r"\([^)]*\)", "", reason))
    shares_first = sorted(numbers, key=lambda found: not found[1])
    return [float(number.replace(",", "")) for number, _ in shares_first]
