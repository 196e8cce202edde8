"""Did the emulation keep up? A pure judgement of evidence: valid, degraded or invalid, with reasons.

The verdict rests on invariants of the links (what crossed them, how fast) and on how long the threads that
move gradients waited for a core. Idle CPU never decides: a busy machine whose links and communication
threads were on time has measured the network, and an idle one that missed them has not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the record's module imports polars
    from testbed.record.summary import Outcome

# Every threshold of the verdict, in one place.
BYTES_TOLERANCE: Final = 0.01
"""Measured against expected bytes. Headers are computed from the segment size, so on a healthy link the two
agree to well under 0.1 %; 1 % is the smallest error that could be read as an effect of a collective or a
channel."""
BYTES_FLOOR: Final = 20_000
"""Connection set-up, keep-alives and ARP are not in the schedule: about a dozen full frames are always
allowed."""
RATE_TOLERANCE: Final = 0.01
"""Above nominal. A shaped link errs by at most 0.1 % (HTB with a burst of 1 ms); a faster one flatters the
network."""
RUN_QUEUE_DEGRADED: Final = 0.05
RUN_QUEUE_INVALID: Final = 0.20
"""Run-queue delay of the communication threads over the time their buckets were in service. A share d of
waiting can stretch the transfer by a factor of up to 1 / (1 - d): 5 % is the size of the differences
between transports that experiments look for, and at 20 % (x 1.25) the numbers describe the machine's
scheduler rather than the network."""
STEAL_DEGRADED: Final = 0.02
"""CPU time the hypervisor gave to others, over all cores. Above 2 % the same run repeated no longer agrees
with itself to within the 1 to 2 % the other limits work with."""
THROTTLED_DEGRADED: Final = 0.02
"""Of the scheduler's periods, those in which a quota that nobody asked for was used up; as steal, it takes time from
everything alike."""
BACKGROUND_LATE_DEGRADED: Final = 0.01
BACKGROUND_BLOCKED_NOTED: Final = 0.01
"""Of a background flow's packets: the size of the error that links are allowed."""
BACKLOG_SHORT_DEGRADED: Final = 0.02
BACKLOG_SHORT_INVALID: Final = 0.10
"""Of rate x time, what a link failed to send while packets waited in its queue (Mininet-HiFi's invariant). The first is
the size of the effects that experiments look for; with a tenth less the experiment was of a slower link."""
RETRANSMITTED_DEGRADED: Final = 0.001
"""Retransmitted over expected bytes on a link that loses nothing. Tail-loss probes of a healthy run stay
below; more means timers fired because a receiver did not get to run."""
LATENESS_SHARE_DEGRADED: Final = 0.1
LATENESS_FLOOR_S: Final = 300e-6
"""How much later than asked the 99th percentile of a link's packets may be let go, of the delay and at least.
A program that is woken on an idle machine is 0.1 ms late; three times that says it waited for a core."""

LATEST_DEGRADED_S: Final = 0.02
"""How much later than asked any packet may be let go. A hundredth of an iteration of 2 s; what takes longer is no
wake-up, but a program that was stopped or starved, and everybody behind the packet waited as long."""

_NUM_NAMED: Final = 3
"""Links, or settings, named in one sentence; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogEvidence:
    """What a direction sent in short times during which its queue surely held packets (testbed.measure.backlog)."""

    num_probes: int
    due_bytes: float
    """rate x time."""
    sent_bytes: int
    chance: float
    """So much of the difference, relative, may be chance."""

    @property
    def error(self) -> float:
        """Relative, signed, of what cannot be chance."""
        surplus = self.sent_bytes / self.due_bytes - 1
        return math.copysign(max(0.0, abs(surplus) - self.chance), surplus)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkEvidence:
    """One direction of one link over the measured iterations."""

    name: str
    """As people read it: `w0 → s0`."""
    rate_bps: float
    """Nominal; virtual, like every rate here."""
    measured_rate_bps: float | None
    """The highest rate seen, in calibration or over the run; None: not measured."""
    bytes: int
    """With headers and retransmissions, without pure acknowledgements."""
    expected_bytes: int | None
    """None: the stack's schedule is not known."""
    retransmitted_bytes: int
    drops: int
    may_drop: bool
    """Chance decides about packets here, the cable was cut, or background traffic passes: drops and retransmissions
    belong to the experiment."""
    delay_s: float = 0.0
    """Asked for."""
    late_s: float | None = None
    """99th percentile of how much later than asked packets were let go; None: the kernel itself delays, or nothing
    does."""
    latest_s: float | None = None
    """Of the packet that was let go latest; None as above."""
    lateness_floor_s: float = LATENESS_FLOOR_S
    """So late a packet may always be; less in virtual time, where time is dilated."""
    backlog: "BacklogEvidence | None" = None
    """None: its queue never held enough to tell."""
    delay_drops: int = 0
    """Packets that the delay line dropped though no loss was asked of it: its buffers were full."""
    uncertain_bytes: int = 0
    """Of background traffic that may or may not have been counted here: dropped somewhere along its path, or under way
    while counters were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackgroundEvidence:
    """One background flow over the measured iterations."""

    name: str
    """As people read it: `background w0 → w3 (constant)`."""
    late_share: float
    """Of the packets that were due, those left out because the source did not get to run in time."""
    blocked_share: float
    """Those that did not fit the source's own link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThrottlingEvidence:
    """What a CPU quota did over the measured iterations."""

    name: str
    """The worker's, or whatever else the quota holds."""
    cpu_cores: float | None
    """Asked for by the spec; None: nobody asked for it."""
    throttled_share: float
    """Of the scheduler's periods, those in which the quota was used up."""
    throttled_s: float
    waiting_share: float | None
    """Run-queue delay of its communication thread / time its buckets were in service; None: no bucket moved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything the verdict looks at."""

    links: Sequence[LinkEvidence]
    run_queue_share: float | None
    """Run-queue delay of the communication threads / time their buckets were in service; None: no bucket
    moved. Workers that the spec holds to a quota or to cores are left out: they wait by design."""
    steal_share: float
    """CPU steal over the measured iterations, as a share of all cores' time."""
    saturated_share: float | None = None
    """Of the time in which buckets were in service, that in which the cores had nothing idle left. Decides nothing, but
    explains what does."""
    softnet_drops: int = 0
    """Packets that the kernel dropped before they reached a link's port, because its input queue was full."""
    read_back_differences: Sequence[str] = ()
    """What the kernel says after the run, of any link, route or sysctl, where it differs from what was set:
    `w0-eth0: rate is 90000000, asked for 100000000`."""
    impossible: Sequence[str] = ()
    """Figures beyond what is physically possible: `w0 → s0 carried 191 % of its rate on average`."""
    foreign_changes: Sequence[str] = ()
    """Of settings, while the workers worked, that the run has not made, put back or not: `w0: traffic class set on
    w0-eth0 by process 4711`."""
    throttling: Sequence[ThrottlingEvidence] = ()
    """Every CPU quota, asked for or not."""
    background: Sequence[BackgroundEvidence] = ()
    aggregation_violations: Sequence[str] = ()
    """Counters of switches that add which do not add up: `aggregator a0 at s0 (ebpf): 7 datagrams received and 6
    accounted for`."""
    aggregation_lost: Sequence[str] = ()
    """Why a switch stopped adding."""
    prometheus_differences: Sequence[str] = ()
    """Counters of Prometheus that are not the record's: `testbed_link_drops_total of w0 on w0-s0 was never scraped`."""


def judge(evidence: Evidence) -> "tuple[Outcome, list[str]]":
    """The verdict, and every reason as a readable sentence, the gravest first.

    A valid run may carry notes: things a reader should know that do not call the numbers in question.
    """
    invalid, degraded, notes = _judge_links(evidence.links, _saturated(evidence))
    if evidence.read_back_differences:
        invalid.insert(
            0,
            f"the kernel's settings differ after the run from what was set ({_listed(evidence.read_back_differences)})",
        )
    if evidence.impossible:
        invalid.insert(
            0,
            f"figures are physically impossible ({_listed(evidence.impossible)}): what decided them is not in the spec",
        )
    if evidence.foreign_changes:
        invalid.insert(
            0,
            "somebody else changed settings of the emulated network while the workers worked "
            f"({_listed(list(dict.fromkeys(evidence.foreign_changes)))}): the numbers are of more than one network",
        )
    if evidence.aggregation_violations:
        invalid.insert(
            0, f"the counters of a switch that adds do not add up ({_listed(evidence.aggregation_violations)})"
        )
    if evidence.aggregation_lost:
        degraded.append(
            "the switch stopped adding, and gradients went around the ring from then on: times are of both "
            f"({_listed(evidence.aggregation_lost)})"
        )
    share = evidence.run_queue_share
    if share is not None and share > RUN_QUEUE_DEGRADED:
        grave = share > RUN_QUEUE_INVALID
        limit = RUN_QUEUE_INVALID if grave else RUN_QUEUE_DEGRADED
        (invalid if grave else degraded).append(
            f"the threads that move gradients waited for a core during {100 * share:.1f} % of the time buckets "
            f"were in service (limit {100 * limit:.0f} %): part of the communication time is this machine's, not the "
            f"network's{_saturated(evidence)}; use fewer workers or a lower rate"
        )
    if evidence.softnet_drops:
        degraded.append(
            f"the kernel dropped {evidence.softnet_drops:,} packets because its input queue was full, which is no "
            "link's queue: sysctl -w net.core.netdev_max_backlog=10000, or use fewer workers or a lower rate"
        )
    if evidence.steal_share > STEAL_DEGRADED:
        degraded.append(
            f"the hypervisor took {100 * evidence.steal_share:.1f} % of the CPU time "
            f"(limit {100 * STEAL_DEGRADED:.0f} %): repeat the run when the host is quieter"
        )
    if evidence.prometheus_differences:
        degraded.append(
            "Prometheus' counters are not the record's: what it shows is not what was measured "
            f"({_listed(evidence.prometheus_differences)})"
        )
    for flow in evidence.background:
        if flow.late_share > BACKGROUND_LATE_DEGRADED:
            degraded.append(
                f"{flow.name} sent {100 * flow.late_share:.1f} % less than asked, because its source did not get to "
                f"run (limit {100 * BACKGROUND_LATE_DEGRADED:.0f} %): use a lower rate, larger packets or fewer workers"
            )
        if flow.blocked_share > BACKGROUND_BLOCKED_NOTED:
            notes.append(
                f"{flow.name} could not send {100 * flow.blocked_share:.1f} % of its packets: its own host's link was "
                "full"
            )
    for quota in evidence.throttling:
        if quota.cpu_cores is not None:
            notes.append(_by_design(quota))
        elif quota.throttled_share > THROTTLED_DEGRADED:
            degraded.append(
                f"a CPU quota that the spec did not ask for held {quota.name} back in "
                f"{100 * quota.throttled_share:.1f} % of the scheduler's periods (limit {100 * THROTTLED_DEGRADED:.0f} "
                "%): part of every time is the quota's; raise it (docker run --cpus, systemd CPUQuota=)"
            )
    outcome: Outcome = "invalid" if invalid else "degraded" if degraded else "valid"
    return outcome, [*invalid, *degraded, *notes]


def _by_design(quota: ThrottlingEvidence) -> str:
    text = (
        f"{quota.name} was held to {quota.cpu_cores:g} cores as asked: throttled in {100 * quota.throttled_share:.0f} "
        f"% of the scheduler's periods, {quota.throttled_s:.2g} s in all"
    )
    if quota.waiting_share is None:
        return text
    return (
        f"{text}; its communication shares the quota, and waited for a core during {100 * quota.waiting_share:.0f} % "
        "of the time its buckets were in service"
    )


def _saturated(evidence: Evidence) -> str:
    share = evidence.saturated_share
    return f" (cores were saturated for {100 * share:.0f} % of communication)" if share else ""


def _judge_links(links: Sequence[LinkEvidence], saturated: str) -> tuple[list[str], list[str], list[str]]:
    """Reasons that make the run invalid, that degrade it, and notes."""
    invalid = [
        *_sentence(
            sorted((link for link in links if _bytes_error(link)), key=lambda link: -abs(_bytes_error(link))),
            f"bytes on the wire differ from the collective's schedule by more than {100 * BYTES_TOLERANCE:.0f} %",
            lambda link: f"{link.bytes:,} bytes instead of {link.expected_bytes:,}{_percent(link)}",
        ),
        *_sentence(
            [link for link in links if (link.measured_rate_bps or 0) > link.rate_bps * (1 + RATE_TOLERANCE)],
            f"measured rate is more than {100 * RATE_TOLERANCE:.0f} % above what was asked",
            lambda link: f"{(link.measured_rate_bps or 0) / 1e6:.4g} Mbit/s instead of {link.rate_bps / 1e6:.4g}",
        ),
    ]
    invalid += _sentence(
        [link for link in links if link.delay_drops],
        "the delay line dropped packets, which no experiment asked for: this machine did not keep up with it; use a "
        "lower rate or a shorter delay",
        lambda link: f"{link.delay_drops:,} packets",
    )
    short = [(-link.backlog.error, link) for link in links if link.backlog is not None and link.backlog.error < 0]
    invalid += _sentence(
        [link for share, link in short if share > BACKLOG_SHORT_INVALID], _short_words(saturated), _backlog_number
    )
    invalid += _sentence(
        [link for link in links if link.backlog is not None and link.backlog.error > RATE_TOLERANCE],
        "links sent more than their rate while packets waited in their queues",
        _backlog_number,
    )
    # A packet lost on one link is sent again over every link before it, so one loss explains them all.
    lossless = not any(link.may_drop or link.drops for link in links)
    spurious = [link for link in links if lossless and link.retransmitted_bytes > _retransmission_slack(link)]
    degraded = _sentence(
        spurious,
        "bytes were sent again although nothing was dropped (timers fired: a process did not get to run)",
        lambda link: f"{link.retransmitted_bytes:,} bytes",
    )
    degraded += _sentence(
        [link for share, link in short if BACKLOG_SHORT_DEGRADED < share <= BACKLOG_SHORT_INVALID],
        _short_words(saturated),
        _backlog_number,
    )
    degraded += _sentence(
        [link for link in links if link.late_s is not None and link.late_s > _lateness_limit_s(link)],
        "packets were let go later than their delay says: this machine was busy with other things; use fewer workers, "
        "a lower rate or a longer delay",
        lambda link: (
            f"1 % more than {1e6 * (link.late_s or 0):.0f} us late, limit {1e6 * _lateness_limit_s(link):.0f} us"
        ),
    )
    degraded += _sentence(
        [link for link in links if link.latest_s is not None and link.latest_s > LATEST_DEGRADED_S],
        "the program that delays packets stood still for a while: somebody stopped it, or it did not get to run",
        lambda link: f"a packet left {1e3 * (link.latest_s or 0):.0f} ms late, limit {1e3 * LATEST_DEGRADED_S:.0f} ms",
    )
    notes = _sentence(
        [link for link in links if link.drops and not link.may_drop],
        "queues were full and dropped packets: part of the experiment if it is about queues, else raise `link.queue`",
        lambda link: f"{link.drops:,} packets",
    )
    notes += _sentence(
        [link for link in links if link.uncertain_bytes > BYTES_TOLERANCE * (link.expected_bytes or math.inf)],
        "background packets were dropped along their way or under way while counters were read, so the check of the "
        "training's bytes is wider there",
        lambda link: f"{link.uncertain_bytes:,} bytes of {link.expected_bytes:,}",
    )
    return invalid, degraded, notes


def _short_words(saturated: str) -> str:
    return (
        "links sent less than their rate while packets waited in their queues: the cores did not keep up with them"
        f"{saturated}; use fewer workers or a lower rate"
    )


def _backlog_number(link: LinkEvidence) -> str:
    assert link.backlog is not None
    backlog = link.backlog
    return f"{100 * backlog.sent_bytes / backlog.due_bytes:.1f} % of rate x time in {backlog.num_probes} probes"


def _bytes_error(link: LinkEvidence) -> int:
    """Bytes outside the tolerance, signed; 0 within it.

    The link counts a retransmission that follows a loss further on, but not one that follows a drop in its
    own queue, so anything from none to all of the retransmitted bytes may have been counted.
    """
    if link.expected_bytes is None:
        return 0
    slack = max(int(BYTES_TOLERANCE * link.expected_bytes), BYTES_FLOOR) + link.uncertain_bytes
    if link.bytes < link.expected_bytes - slack:
        return link.bytes - link.expected_bytes
    surplus = link.bytes - link.retransmitted_bytes - link.expected_bytes
    return surplus if surplus > slack else 0


def _lateness_limit_s(link: LinkEvidence) -> float:
    return max(link.lateness_floor_s, LATENESS_SHARE_DEGRADED * link.delay_s)


def _retransmission_slack(link: LinkEvidence) -> float:
    return max(RETRANSMITTED_DEGRADED * (link.expected_bytes or link.bytes), BYTES_FLOOR)


def _percent(link: LinkEvidence) -> str:
    return f", {100 * (link.bytes / link.expected_bytes - 1):+.1f} %" if link.expected_bytes else ""


def _sentence(links: Sequence[LinkEvidence], what: str, number: Callable[[LinkEvidence], str]) -> list[str]:
    """No sentence for no link, else one: what is wrong, where, by how much."""
    if not links:
        return []
    return [f"{what} ({_listed([f'{link.name}: {number(link)}' for link in links])})"]


def _listed(items: Sequence[str]) -> str:
    rest = f"; and {len(items) - _NUM_NAMED} more" if len(items) > _NUM_NAMED else ""
    return "; ".join(items[:_NUM_NAMED]) + rest
