"""What a run's numbers are worth: the only place that decides an outcome. Pure.

:func:`judge` takes what a run knows (Facts) and what was computed from it (Results), and says valid, degraded, invalid,
failed or unsupported, with every reason as a readable sentence, the gravest first. It rests on invariants of the links
(what crossed them, how fast) and on how long the threads that move gradients waited for a core. Idle CPU never
decides: a busy machine whose links and communication threads were on time has measured the network, and an idle one
that missed them has not.

A rule is a function that yields reasons; a new one is added to RULES.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import polars as pl

from testbed.experiment.link import beyond_shaping
from testbed.record.summary import Outcome, Results, WaitingSummary
from testbed.verdict.changes import change_notes, least_delay_s
from testbed.verdict.facts import Facts, LinkFacts, Quota
from testbed.verdict.link_bounds import impossible, out_of_step, overspeeds
from testbed.verdict.machine import alone_wait_shares, beyond_chance
from testbed.verdict.scaling import rests_on_compute_only
from testbed.verdict.thresholds import (
    ALONE_WAIT_DEGRADED,
    BACKGROUND_BLOCKED_NOTED,
    BACKGROUND_LATE_DEGRADED,
    BACKLOG_SHORT_DEGRADED,
    BACKLOG_SHORT_INVALID,
    BYTES_FLOOR,
    BYTES_TOLERANCE,
    CHANGES_LATE_DEGRADED,
    CHANGES_LATE_FLOOR_S,
    CHANGES_LATE_NOTED_S,
    LATENESS_FLOOR_S,
    LATENESS_SHARE_DEGRADED,
    LATEST_DEGRADED_S,
    OTHER_LOAD_DEGRADED,
    OTHER_LOAD_INVALID,
    OTHER_LOAD_MIN_S,
    OVERRUN_DEGRADED,
    OVERRUN_INVALID,
    OVERRUN_MEAN_DEGRADED,
    OVERRUN_TOLERANCE,
    RATE_TOLERANCE,
    RETRANSMITTED_DEGRADED,
    RETRANSMITTED_EARLY_DEGRADED,
    RUN_QUEUE_DEGRADED,
    RUN_QUEUE_INVALID,
    RUN_QUEUE_MATERIAL,
    STAGES_TOLERANCE,
    STEAL_DEGRADED,
    STEAL_INVALID,
    THROTTLED_DEGRADED,
    THROTTLED_INVALID,
)
from testbed.verdict.underlay import underlay_jitters, underlay_note, underlay_shortcomings
from testbed.verdict.utilization import excesses
from testbed.verdict.waiting import is_withheld, lateness_summary

Gravity = Literal["failed", "unsupported", "invalid", "degraded", "note"]
_OUTCOMES: Final[Mapping[Gravity, Outcome]] = {
    "failed": "failed",
    "unsupported": "unsupported",
    "invalid": "invalid",
    "degraded": "degraded",
    "note": "valid",
}
"""The gravest first."""
_ENDS: Final[Mapping[str, Gravity]] = {
    "failed": "failed",
    "not calibrated": "invalid",
    "unsupported": "unsupported",
}
_NUM_NAMED: Final = 3
"""Links, or settings, named in one sentence; the rest are counted."""


class Reason(NamedTuple):
    """Why numbers are not simply valid, or (a note) what a reader of valid ones should know."""

    gravity: Gravity
    text: str


class Verdict(NamedTuple):
    """What the numbers are worth, and why."""

    outcome: Outcome
    reasons: list[str]
    """Why they are not simply valid, the gravest first."""
    notes: list[str]
    """What a reader should know that calls no number in question."""


Rule = Callable[[Facts, Results], Iterator[Reason]]


def judge(facts: Facts, results: Results) -> Verdict:
    """The verdict."""
    rules = (
        RULES if facts.end.kind == "completed" else (_ended_early, _parameters, _foreign_changes, _interference, _code)
    )
    order = list(_OUTCOMES)
    found = sorted(
        (reason for rule in rules for reason in rule(facts, results)), key=lambda reason: order.index(reason.gravity)
    )
    outcome = _OUTCOMES[found[0].gravity] if found else "valid"
    texts = dict.fromkeys(reason.text for reason in found if reason.gravity != "note")
    notes = dict.fromkeys(reason.text for reason in found if reason.gravity == "note")
    return Verdict(outcome, list(texts), list(notes))


def _ended_early(facts: Facts, _: Results) -> Iterator[Reason]:
    yield Reason(_ENDS[facts.end.kind], facts.end.text)


def _parameters(facts: Facts, _: Results) -> Iterator[Reason]:
    if (different := len(set(facts.parameters_sha256))) > 1:
        yield Reason(
            "failed", f"the workers ended with {different} different sets of parameters; they must be the same"
        )


def _aggregation(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.aggregation_violations:
        yield Reason(
            "invalid", f"the counters of an aggregating switch do not add up ({_listed(facts.aggregation_violations)})"
        )
    if facts.aggregation_lost:
        yield Reason(
            "degraded",
            "the switch stopped aggregating, and gradients went around the ring from then on: times are of both "
            f"({_listed(facts.aggregation_lost)})",
        )


def _foreign_changes(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.foreign_changes:
        yield Reason(
            "invalid",
            "somebody else changed settings of the emulated network while the workers worked "
            f"({_listed(list(dict.fromkeys(facts.foreign_changes)))}): the numbers are of more than one network",
        )


def _interference(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.interference:
        listed = _listed(list(dict.fromkeys(facts.interference)))
        yield Reason(
            "degraded", f"somebody else held processes of the run back ({listed}): part of the times is theirs"
        )


def _code(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.code_changed:
        yield Reason(
            "degraded",
            "the testbed's sources were changed (edited, pulled, checked out) after this process began: what it had "
            "imported by then is of other sources than what it compiled or imported later; start it anew",
        )


def _impossible(facts: Facts, results: Results) -> Iterator[Reason]:
    bursts = {(link.name, link.from_): link.burst_bytes for link in facts.links}
    rates = [(link.burst_bytes, link.rate_bps) for link in facts.links if link.burst_bytes]
    at_once_s = max((8 * (burst + facts.granule_bytes) / rate_bps for burst, rate_bps in rates), default=0.0)
    found = [
        f"{each.node} sent {each.sent_bytes:,} bytes into {each.link} in {1e3 * each.time_s:.0f} ms, in which its "
        f"rate allows {each.possible_bytes:,.0f}"
        for each in overspeeds(facts.samples, facts.changes, bursts, facts.granule_bytes, dilation=facts.dilation)
    ]
    found += [
        f"{each.link.title} carried {each.carried_bytes:,} bytes {each.when}, in which its rate and burst allow "
        f"{each.possible_bytes:,.0f}"
        for each in excesses(facts)
    ]
    found += impossible(results, at_once_s=facts.num_bursts * at_once_s)
    if found:
        yield Reason(
            "invalid", f"figures are physically impossible ({_listed(found)}): what decided them is not in the spec"
        )
    elif why := out_of_step(results, at_once_s=facts.num_bursts * at_once_s):
        yield Reason("note", why)


def _read_back(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.read_back_differences:
        listed = _listed(facts.read_back_differences)
        yield Reason("invalid", f"the kernel's settings differ after the run from what was set ({listed})")


def _priorities(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.gradient_threads is not None and facts.gradient_threads.ordinary:
        yield Reason(
            "degraded",
            "threads that move gradients or serve training data were to run before those that compute, and when the "
            f"measured iterations ended did not ({_listed(facts.gradient_threads.ordinary)}): somebody changed it "
            "(chrt, a daemon that sets priorities), or they were started by threads that compute; part of the times is "
            "this machine's",
        )


def _bytes(facts: Facts, _: Results) -> Iterator[Reason]:
    reads = facts.storage is not None and facts.storage.batch_bytes > 0
    schedule = "the collective's schedule and what batches were read" if reads else "the collective's schedule"
    yield from _wrong_bytes(facts.links, f"bytes on the wire differ from {schedule}")
    yield from _wrong_bytes(
        facts.reading, "before the first iteration, bytes on the wire differ from what was read from the storage node"
    )
    unsure = BYTES_TOLERANCE
    yield from _about(
        "note",
        [each for each in facts.links if each.background_uncertain_bytes > unsure * (each.expected_bytes or math.inf)],
        "background packets were dropped on their path or in flight while counters were read, so the check of the "
        "training's bytes is wider there",
        lambda link: f"{link.background_uncertain_bytes:,} bytes of {link.expected_bytes:,}",
    )


def _verification(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.verifies_gradients:
        yield Reason(
            "degraded",
            "all gradients were gathered over the same links after each iteration (workload.verify_gradients): its "
            "times, and what links carried, are not training's",
        )


def _wrong_bytes(links: Sequence[LinkFacts], what: str) -> Iterator[Reason]:
    yield from _about(
        "invalid",
        sorted((link for link in links if _bytes_error(link)), key=lambda link: -abs(_bytes_error(link))),
        f"{what} by more than {100 * BYTES_TOLERANCE:.0f} %",
        lambda link: f"{link.bytes:,} bytes instead of {link.expected_bytes:,}{_percent(link)}",
    )


def _storage(facts: Facts, _: Results) -> Iterator[Reason]:
    share = 0.0 if facts.storage is None else facts.storage.waited_share
    if graded := _graded(share, RUN_QUEUE_DEGRADED, RUN_QUEUE_INVALID):
        yield Reason(
            graded.gravity,
            f"the storage node waited for a core for {100 * share:.1f} % of the time in which it was read from (limit "
            f"{100 * graded.limit:.0f} %): part of reading is this machine's; use fewer workers or a lower rate",
        )


def _stages(_: Facts, results: Results) -> Iterator[Reason]:
    stages = results.stages
    if stages is not None and abs(stages.unaccounted_s) > STAGES_TOLERANCE * stages.wall_s:
        yield Reason(
            "note",
            f"{100 * stages.unaccounted_s / stages.wall_s:.1f} % of the job's time is in none of its stages (limit "
            f"{100 * STAGES_TOLERANCE:.0f} %): bookkeeping between iterations, and waiting in barriers",
        )


def _rates(facts: Facts, results: Results) -> Iterator[Reason]:
    yield from _about(
        "invalid",
        [
            link
            for link in facts.links
            if not beyond_shaping(link.rate_bps)
            and (link.measured_rate_bps or 0) > link.rate_bps * (1 + RATE_TOLERANCE)
        ],
        f"measured rate is more than {100 * RATE_TOLERANCE:.0f} % above what was requested",
        lambda link: f"{(link.measured_rate_bps or 0) / 1e6:.4g} Mbit/s instead of {link.rate_bps / 1e6:.4g}",
    )
    errors = [(_backlog_error(link), link) for link in facts.links]
    too_fast = [link for error, link in errors if error > RATE_TOLERANCE]
    yield from _about(
        "invalid", too_fast, "links sent more than their rate while packets waited in their queues", _backlog_number
    )
    text = (
        "links sent less than their rate while packets waited in their queues: the cores did not keep up with them"
        f"{_saturated(results)}; use fewer workers or a lower rate"
    )
    much = [link for error, link in errors if -error > BACKLOG_SHORT_INVALID]
    little = [link for error, link in errors if BACKLOG_SHORT_DEGRADED < -error <= BACKLOG_SHORT_INVALID]
    yield from _about("invalid", much, text, _backlog_number)
    yield from _about("degraded", little, text, _backlog_number)


def _underlay(facts: Facts, _: Results) -> Iterator[Reason]:
    yield from (Reason("invalid", text) for text in underlay_shortcomings(facts.underlay))
    yield from (Reason("degraded", text) for text in underlay_jitters(facts.underlay))
    if facts.underlay:
        yield Reason("note", underlay_note(facts.underlay))


def _delay_lines(facts: Facts, _: Results) -> Iterator[Reason]:
    lines = [(link, link.delay_line) for link in facts.links if link.delay_line is not None]
    yield from _about(
        "invalid",
        [link for link, line in lines if line.num_dropped],
        "the delay line dropped packets, which no experiment requested: this machine did not keep up with it; use a "
        "lower rate or a shorter delay",
        lambda link: f"{link.delay_line.num_dropped if link.delay_line else 0:,} packets",
    )
    yield from _lost_by_lateness(facts)
    yield from _about(
        "degraded",
        [link for link, line in lines if (line.late_p99_s or 0.0) > _lateness_limit_s(facts, link)],
        "packets were let go later than their delay says: this machine was busy with other things; use fewer workers, "
        "a lower rate or a longer delay",
        lambda link: (
            f"1 % more than {1e6 * _late_s(link, 'late_p99_s'):.0f} us late, limit "
            f"{1e6 * _lateness_limit_s(facts, link):.0f} us"
        ),
    )
    yield from _about(
        "degraded",
        [link for link, line in lines if (line.late_max_s or 0.0) > LATEST_DEGRADED_S],
        "the program that delays packets stood still for a while: somebody stopped it, or it did not get to run",
        lambda link: (
            f"a packet left {1e3 * _late_s(link, 'late_max_s'):.0f} ms late, limit {1e3 * LATEST_DEGRADED_S:.0f} ms"
        ),
    )


def _lost_by_lateness(facts: Facts) -> Iterator[Reason]:
    """Few packets that are very late are in no percentile, and may hold up everybody."""
    if facts.command is not None and facts.overdue_s > RUN_QUEUE_MATERIAL * facts.command.time_s:
        yield Reason(
            "degraded",
            f"packets were let go later than their delay says for {facts.overdue_s:.2g} s in all, and the command took "
            f"{facts.command.time_s:.2g} s (limit {100 * RUN_QUEUE_MATERIAL:.0f} % of it): this machine was busy with "
            "other things; use fewer workers, a lower rate or a longer delay",
        )
    found = lateness_summary(facts) if facts.overdue_s else None
    if found is None:
        return
    invalid = RUN_QUEUE_INVALID if found.of_iterations > RUN_QUEUE_MATERIAL else math.inf
    if graded := _graded(found.share, RUN_QUEUE_DEGRADED, invalid):
        yield Reason(
            graded.gravity,
            f"packets were let go later than their delay says for {facts.overdue_s:.2g} s in all, which may have "
            f"lengthened communication by up to {100 * found.share:.1f} % of itself (limit {100 * graded.limit:.0f} %) "
            f"and iterations by up to {100 * found.of_iterations:.1f} %: this machine was busy with other things; use "
            "fewer workers, a lower rate or a longer delay",
        )


def _losses(facts: Facts, _: Results) -> Iterator[Reason]:
    # A packet lost on one link is sent again over every link before it, so one loss explains them all.
    lossless = not any(link.may_drop or link.drops for link in facts.links)
    filtered = any("packet filter" in change for change in facts.foreign_changes)
    why = "a packet filter that somebody set dropped them" if filtered else "timers fired: a process did not get to run"
    yield from _about(
        "degraded",
        [
            link
            for link in facts.links
            if lossless and link.retransmitted_bytes > _retransmission_slack(link, facts.dilation)
        ],
        f"bytes were sent again although no link dropped any ({why})",
        lambda link: f"{link.retransmitted_bytes:,} bytes",
    )
    yield from _about(
        "note",
        [link for link in facts.links if link.drops and not link.may_drop],
        "queues were full and dropped packets: part of the experiment if it is about queues, else raise `link.queue`",
        lambda link: f"{link.drops:,} packets",
    )
    if facts.softnet_drops:
        yield Reason(
            "degraded",
            f"the kernel dropped {facts.softnet_drops:,} packets because its input queue was full, which is no "
            "link's queue: sysctl -w net.core.netdev_max_backlog=10000, or use fewer workers or a lower rate",
        )


def _cores(facts: Facts, results: Results) -> Iterator[Reason]:
    found = results.waiting
    if found is not None:
        invalid = RUN_QUEUE_INVALID if found.of_iterations > RUN_QUEUE_MATERIAL else math.inf
        share = 0.0 if is_withheld(found) else found.share
        if graded := _graded(share, RUN_QUEUE_DEGRADED, invalid):
            yield Reason(
                graded.gravity,
                f"threads that move gradients waited for a core, which may have lengthened communication by up to "
                f"{100 * share:.1f} % of itself (limit {100 * graded.limit:.0f} %) and iterations by up to "
                f"{100 * found.of_iterations:.1f} %: part of it is this machine's, not the network's"
                f"{_who_waited(found, facts)}{_saturated(results)}; use fewer workers, a lower rate or a larger "
                "dilation",
            )
    if graded := _graded(facts.steal_share, STEAL_DEGRADED, STEAL_INVALID):
        yield Reason(
            graded.gravity,
            f"the hypervisor took {100 * facts.steal_share:.1f} % of the CPU time "
            f"(limit {100 * graded.limit:.0f} %): repeat the run when the host is quieter",
        )


def _computing_without_communication(facts: Facts, results: Results) -> Iterator[Reason]:
    """What the headline compares with was measured, too, so it is judged like the measured iterations."""
    if results.scaling_factor is not None:
        for rank, share in alone_wait_shares(facts.iterations).items():
            # One that is held to a share of the cores waits for them by design, alone, too.
            if share > ALONE_WAIT_DEGRADED and rank not in facts.limited_ranks:
                yield Reason(
                    "degraded",
                    f"w{rank} waited for a core for {100 * share:.0f} % of the time in which it computed alone (limit "
                    f"{100 * ALONE_WAIT_DEGRADED:.0f} %): other programs had the cores, and the scaling factor is too "
                    "high; repeat the run when the machine is quieter",
                )
    others = facts.other_programs.get("compute_only")
    rests = rests_on_compute_only(results.scaling_factor, results.pace)
    if others and rests and (graded := _graded(others.taken_share, OTHER_LOAD_DEGRADED, OTHER_LOAD_INVALID)):
        took = f"{others.text} while the workers computed without communicating (limit {100 * graded.limit:.0f} %)"
        if graded.gravity == "invalid":
            # The number is withheld, the iterations stand; the run is no better than one with a little less of that.
            yield Reason("degraded", f"{took}: there is no network efficiency, which compares with that time")
        elif results.network_efficiency is not None:
            yield Reason(
                "degraded",
                f"{took}: network efficiency compares with that time and is too high; repeat the run when the machine "
                "is quieter",
            )


def _other_programs(facts: Facts, results: Results) -> Iterator[Reason]:
    """What they take from threads that move gradients, and from computing that has a pace, is measured where it
    happens. Computing without a pace only lasts longer; so does what workers do that wait for a core by design, and
    what a command does, of whose threads nothing is known."""
    others = facts.other_programs.get("measured")
    if others is None or not (graded := _graded(others.share, OTHER_LOAD_DEGRADED, OTHER_LOAD_INVALID)):
        return
    took = f"{others.text} while iterations were measured"
    limit = f"(limit {100 * graded.limit:.0f} %)"
    if facts.command is not None:
        if facts.command.time_s >= OTHER_LOAD_MIN_S:
            # Links stand, and whether its time matters only the user knows.
            yield Reason(
                "degraded",
                f"{others.text} while the command ran (limit {100 * OTHER_LOAD_DEGRADED:.0f} %): its time has in it "
                "what they took; repeat the run when the machine is quieter",
            )
    elif results.pace is None and results.compute_contention is not None:
        yield Reason(
            graded.gravity,
            f"{took} {limit}: computing without a pace lasts longer then; repeat the run when the machine is quieter, "
            "or give it a pace (workload.pace)",
        )
    elif facts.limited_ranks:
        yield Reason(
            graded.gravity,
            f"{took} {limit}: workers that are held to a share of the cores wait for them in any case, and nothing "
            "shows how much longer they waited; repeat the run when the machine is quieter",
        )
    else:
        yield Reason("note", took)


def _pace(_: Facts, results: Results) -> Iterator[Reason]:
    pace = results.pace
    if pace is None:
        return
    mean = 100 * pace.overrun_share_mean
    if pace.overrun_share_mean > OVERRUN_INVALID:
        yield Reason(
            "invalid",
            f"gradients were ready {mean:.0f} % of the pace later than it says, in the mean (limit "
            f"{100 * OVERRUN_INVALID:.0f} %): this machine computes more slowly than the device that it should be; use "
            "a longer pace, smaller batches or fewer workers",
        )
        return
    often = pace.num_overrun > OVERRUN_DEGRADED * pace.num_iterations
    # One of a few is chance: it counts by what it adds to all of them.
    often = often and (pace.num_overrun > 1 or pace.overrun_share_mean > OVERRUN_TOLERANCE)
    if often or pace.overrun_share_mean > OVERRUN_MEAN_DEGRADED:
        yield Reason(
            "degraded",
            f"computing overran its pace by more than {100 * OVERRUN_TOLERANCE:.0f} % in {pace.num_overrun} of "
            f"{pace.num_iterations} iterations (limit {100 * OVERRUN_DEGRADED:.0f} %), by {mean:.1f} % in the mean "
            f"(limit {100 * OVERRUN_MEAN_DEGRADED:.0f} %): "
            "part of every iteration is this machine's; use a longer pace, smaller batches or fewer workers",
        )


def _quotas(facts: Facts, _: Results) -> Iterator[Reason]:
    for quota in facts.quotas:
        if quota.cpu_cores is not None:
            yield Reason("note", _by_design(quota))
        elif graded := _graded(quota.throttled_share, THROTTLED_DEGRADED, THROTTLED_INVALID):
            yield Reason(
                graded.gravity,
                f"a CPU quota that the spec did not ask for held {quota.name} back in "
                f"{100 * quota.throttled_share:.1f} % of the scheduler's periods (limit {100 * graded.limit:.0f} "
                "%): part of every time is the quota's; raise it (docker run --cpus, systemd CPUQuota=)",
            )


def _by_design(quota: Quota) -> str:
    text = (
        f"{quota.name} was held to {quota.cpu_cores:g} cores as requested: throttled in "
        f"{100 * quota.throttled_share:.0f} % of the scheduler's periods, {quota.throttled_s:.2g} s in all"
    )
    if quota.waiting_share is None:
        return text
    return (
        f"{text}; its communication shares the quota, and waited for a core for {100 * quota.waiting_share:.0f} % "
        "of its exposed communication"
    )


def _background(facts: Facts, _: Results) -> Iterator[Reason]:
    for flow in facts.background:
        title = f"background {flow.from_} → {flow.to} ({flow.kind})"
        if flow.late_share > BACKGROUND_LATE_DEGRADED:
            yield Reason(
                "degraded",
                f"{title} sent {100 * flow.late_share:.1f} % less than requested, as its source did not get to run "
                f"(limit {100 * BACKGROUND_LATE_DEGRADED:.0f} %): use a lower rate, larger packets or fewer workers",
            )
        if flow.blocked_share > BACKGROUND_BLOCKED_NOTED:
            yield Reason(
                "note",
                f"{title} could not send {100 * flow.blocked_share:.1f} % of its packets: its own host's link was full",
            )


def _late_changes(facts: Facts, _: Results) -> Iterator[Reason]:
    late_s, (start_s, end_s) = facts.changes_late_s, facts.window or (0.0, 0.0)
    limit_s = max(CHANGES_LATE_FLOOR_S, CHANGES_LATE_DEGRADED * (end_s - start_s) / facts.dilation)
    if late_s > limit_s:
        yield Reason(
            "degraded",
            f"changes of links were made up to {late_s:.2g} s later than the spec says (limit {limit_s:.2g} s): this "
            "machine did not keep up with them; change fewer links at once or less often, or use `link.backend: "
            "nfqueue`, which starts no process for a change of delay or loss",
        )
    elif late_s > CHANGES_LATE_NOTED_S:
        yield Reason(
            "note",
            f"changes of links were made up to {1e3 * late_s:.0f} ms later than the spec says (limit "
            f"{1e3 * limit_s:.0f} ms)",
        )


def _others(facts: Facts, _: Results) -> Iterator[Reason]:
    if facts.prometheus is not None and facts.prometheus.differences:
        yield Reason(
            "degraded",
            "Prometheus' counters are not the record's: what it shows is not what was measured "
            f"({_listed(facts.prometheus.differences)})",
        )
    if facts.unused_backend:
        yield Reason("degraded", facts.unused_backend)
    yield from (Reason("note", text) for text in (*change_notes(facts.changes), *facts.notes))


RULES: Final[Sequence[Rule]] = (
    _parameters,
    _aggregation,
    _foreign_changes,
    _interference,
    _code,
    _impossible,
    _read_back,
    _priorities,
    _bytes,
    _verification,
    _rates,
    _underlay,
    _delay_lines,
    _losses,
    _pace,
    _cores,
    _storage,
    _computing_without_communication,
    _other_programs,
    _quotas,
    _background,
    _late_changes,
    _stages,
    _others,
)
"""Of a run that went to its end, in the order in which reasons alike in gravity are said."""


def _saturated(results: Results) -> str:
    share = results.machine.saturated_share if results.machine else None
    return f" (cores were saturated for {100 * share:.0f} % of communication)" if share else ""


def _who_waited(found: WaitingSummary, facts: Facts) -> str:
    """Of sums only a server, where it waited longer than any worker did."""
    host, waited_s = max(found.by_host_s.items(), key=lambda each: each[1], default=("", 0.0))
    if facts.waits is not None:
        return (
            f" (while gradients were exchanged, some thread waited for {found.waited_s:.2g} s in all, "
            f"of {host} for {waited_s:.2g} s)"
        )
    measured = facts.iterations.filter(pl.col("phase") == "measured")
    workers = measured.group_by("rank").agg(pl.col("communication_run_queue_delay_s").sum())
    longest_s = max(workers["communication_run_queue_delay_s"].to_list(), default=0.0) / facts.dilation
    return f" ({host} waited longest, {waited_s:.2g} s)" if waited_s > longest_s else ""


class _Graded(NamedTuple):
    gravity: Gravity
    limit: float
    """The one that is exceeded."""


def _graded(share: float, degraded: float, invalid: float) -> _Graded | None:
    """By two limits; None below both."""
    if share > invalid:
        return _Graded("invalid", invalid)
    return _Graded("degraded", degraded) if share > degraded else None


def _backlog_error(link: LinkFacts) -> float:
    """Relative, signed, of what cannot be chance."""
    if link.backlog is None:
        return 0.0
    return beyond_chance(link.backlog.sent_bytes, link.backlog.due_bytes, link.backlog.chance)


def _backlog_number(link: LinkFacts) -> str:
    assert link.backlog is not None
    backlog = link.backlog
    return f"{100 * backlog.sent_bytes / backlog.due_bytes:.1f} % of rate x time in {backlog.num_probes} probes"


def _bytes_error(link: LinkFacts) -> int:
    """Bytes outside the tolerance, signed; 0 within it.

    The link counts a retransmission that follows a loss further on, but not one that follows a drop in its
    own queue, so anything from none to all of the retransmitted bytes may have been counted. Short messages share
    segments where one follows another at once, or do not.
    """
    if link.expected_bytes is None:
        return 0
    slack = max(int(BYTES_TOLERANCE * link.expected_bytes), BYTES_FLOOR) + link.background_uncertain_bytes
    if link.bytes < link.expected_bytes - slack:
        return link.bytes - link.expected_bytes
    surplus = link.bytes - link.retransmitted_bytes - link.expected_bytes - link.split_bytes
    return surplus if surplus > slack else 0


def _late_s(link: LinkFacts, name: Literal["late_p99_s", "late_max_s"]) -> float:
    late_s: float | None = getattr(link.delay_line, name) if link.delay_line else None
    return late_s or 0.0


def _lateness_limit_s(facts: Facts, link: LinkFacts) -> float:
    """Virtual; the floor is a wake-up on this machine. A delay that changed counts as the least that it was."""
    delay_s = least_delay_s(facts.changes, link=link.name, node=link.from_, delay_s=link.delay_s)
    return max(LATENESS_FLOOR_S / facts.dilation, LATENESS_SHARE_DEGRADED * delay_s)


def _retransmission_slack(link: LinkFacts, dilation: float) -> float:
    early = dilation > 1 or not link.burst_bytes
    share = RETRANSMITTED_EARLY_DEGRADED if early else RETRANSMITTED_DEGRADED
    return max(share * (link.expected_bytes or link.bytes), BYTES_FLOOR)


def _percent(link: LinkFacts) -> str:
    return f", {100 * (link.bytes / link.expected_bytes - 1):+.1f} %" if link.expected_bytes else ""


def _about(
    gravity: Gravity, links: Sequence[LinkFacts], what: str, number: Callable[[LinkFacts], str]
) -> Iterator[Reason]:
    """Nothing for no link, else one sentence: what is wrong, where, by how much."""
    if links:
        yield Reason(gravity, f"{what} ({_listed([f'{link.title}: {number(link)}' for link in links])})")


def _listed(items: Sequence[str]) -> str:
    rest = f"; and {len(items) - _NUM_NAMED} more" if len(items) > _NUM_NAMED else ""
    return "; ".join(items[:_NUM_NAMED]) + rest
