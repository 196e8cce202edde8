"""The verdict follows from the facts, each reason with its numbers."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from testbed.experiment.link import MAX_RATE_BPS, UNSHAPED_BPS
from testbed.measure.observations import GradientThreadsNow
from testbed.measure.programs import Programs
from testbed.record.frames import CHANGE_SCHEMA, WAIT_SCHEMA
from testbed.record.summary import BackgroundSummary, BacklogSummary, CommandSummary, Outcome, PrometheusSummary
from testbed.system import native
from testbed.verdict import judge as judge_module
from testbed.verdict.facts import End, Facts, Quota
from testbed.verdict.summarize import measure
from testbed.verdict.thresholds import LATENESS_FLOOR_S, LATENESS_SHARE_DEGRADED
from tests.facts import LINK, PREDICTION, command_among_others, delay_line, facts, waiting, with_link
from tests.rows import bucket, buckets, iteration, iterations


class Said(NamedTuple):
    outcome: Outcome
    texts: list[str]
    """Reasons, then notes."""


def judge(known: Facts) -> Said:
    verdict = judge_module.judge(known, measure(known))
    return Said(verdict.outcome, [*verdict.reasons, *verdict.notes])


def test_a_healthy_run_is_valid_without_a_word() -> None:
    assert judge(facts()) == ("valid", [])


@pytest.mark.parametrize("measured", [60_700_000, 59_300_000])
def test_bytes_beyond_one_percent_are_invalid_and_name_the_link(measured: int) -> None:
    outcome, (reason,) = judge(with_link(bytes=measured))
    assert outcome == "invalid"
    assert "w0 → s0" in reason
    assert f"{measured:,} bytes instead of 60,010,000" in reason
    assert f"{100 * (measured / 60_010_000 - 1):+.1f} %" in reason


@pytest.mark.parametrize("measured", [60_600_000, 59_420_000])
def test_bytes_within_one_percent_are_valid(measured: int) -> None:
    assert judge(with_link(bytes=measured))[0] == "valid"


def test_short_messages_may_have_segments_of_their_own_but_not_more() -> None:
    assert judge(with_link(bytes=61_500_000, split_bytes=1_000_000))[0] == "valid"
    assert judge(with_link(bytes=61_700_000, split_bytes=1_000_000))[0] == "invalid"
    assert judge(with_link(bytes=59_300_000, split_bytes=1_000_000))[0] == "invalid"


def test_a_link_that_should_carry_nothing_may_carry_a_handshake_but_not_more() -> None:
    assert judge(with_link(bytes=4_000, expected_bytes=0))[0] == "valid"
    assert judge(with_link(bytes=90_000, expected_bytes=0))[0] == "invalid"


def test_an_unknown_schedule_is_not_compared() -> None:
    assert judge(with_link(expected_bytes=None, bytes=1)) == ("valid", [])


def test_retransmissions_of_configured_loss_explain_surplus_bytes() -> None:
    lossy: dict[str, Any] = {"may_drop": True, "drops": 500, "retransmitted_bytes": 3_000_000}
    assert judge(with_link(bytes=63_000_000, **lossy)) == ("valid", [])
    # Packets lost in the link's own queue were never counted, so the same retransmissions may not show at all.
    assert judge(with_link(bytes=60_000_000, **lossy)) == ("valid", [])
    assert judge(with_link(bytes=64_000_000, **lossy))[0] == "invalid"


def test_a_link_faster_than_requested_is_invalid_and_a_slower_one_is_calibrations_business() -> None:
    outcome, (reason,) = judge(with_link(measured_rate_bps=102e6))
    assert outcome == "invalid"
    assert "102 Mbit/s instead of 100" in reason
    assert judge(with_link(measured_rate_bps=100.9e6))[0] == "valid"
    assert judge(with_link(measured_rate_bps=None))[0] == "valid"


def test_a_changed_setting_is_invalid() -> None:
    changed = ["w0-eth0: rate is 90000000, requested 100000000", "w1: congestion control on the route is ['bbr']"]
    outcome, (reason,) = judge(facts(read_back_differences=changed))
    assert outcome == "invalid"
    assert all(line in reason for line in changed)
    assert "and 2 more" in judge(facts(read_back_differences=["a", "b", "c", "d", "e"]))[1][0]


def test_what_calls_no_number_in_question_is_a_note_and_no_reason() -> None:
    """It stood among the reasons, so that comparisons gave it as one why runs are degraded."""
    known = facts(changes_late_s=0.05, read_back_differences=["a rate"])
    verdict = judge_module.judge(known, measure(known))
    assert verdict.outcome == "invalid"
    assert ["a rate" in reason for reason in verdict.reasons] == [True]
    assert ["up to 50 ms later than the spec says" in note for note in verdict.notes] == [True]


def test_changes_that_came_late_degrade_and_the_limit_is_of_virtual_time() -> None:
    assert judge(facts(changes_late_s=0.0)) == ("valid", [])
    outcome, (reason,) = judge(facts(changes_late_s=7.5))
    assert outcome == "degraded"
    assert "up to 7.5 s later than the spec says (limit 0.1 s)" in reason
    outcome, (reason,) = judge(facts(changes_late_s=0.05))
    assert outcome == "valid"
    assert "up to 50 ms later than the spec says (limit 100 ms)" in reason
    long = replace(command_among_others(0.0, 500.0), command_end_s=510.0)
    assert judge(replace(long, changes_late_s=4.9))[0] == "valid"
    assert judge(replace(long, dilation=10.0, changes_late_s=0.51))[0] == "degraded", "of 50 s"


def test_threads_that_move_gradients_and_ran_beside_those_that_compute_degrade_and_are_named() -> None:
    assert judge(facts(gradient_threads=GradientThreadsNow(num_first=8, ordinary=()))) == ("valid", [])
    text = "w1: grpc_poller (thread 4711) is in SCHED_OTHER"
    outcome, (reason,) = judge(facts(gradient_threads=GradientThreadsNow(num_first=7, ordinary=[text])))
    assert outcome == "degraded"
    assert text in reason
    found = measure(facts(gradient_threads=GradientThreadsNow(num_first=7, ordinary=[text])))
    assert found.checked.num_gradient_threads == 7
    assert measure(facts()).checked.num_gradient_threads is None, "none were to"


def test_unexpected_drops_are_noted_without_changing_the_verdict() -> None:
    outcome, (reason,) = judge(with_link(drops=12, retransmitted_bytes=500_000))
    assert outcome == "valid"
    assert "12 packets" in reason
    assert judge(with_link(drops=12, may_drop=True)) == ("valid", [])


def test_packets_let_go_late_degrade_and_say_by_how_much() -> None:
    assert judge(with_link(delay_s=1e-3, delay_line=delay_line(late_p99_s=300e-6))) == ("valid", [])
    outcome, (reason,) = judge(with_link(delay_s=1e-3, delay_line=delay_line(late_p99_s=310e-6)))
    assert outcome == "degraded"
    assert "310 us late, limit 300 us" in reason
    assert judge(with_link(delay_s=5e-3, delay_line=delay_line(late_p99_s=499e-6)))[0] == "valid"
    assert judge(with_link(delay_s=5e-3, delay_line=delay_line(late_p99_s=501e-6)))[0] == "degraded"


@pytest.mark.parametrize(
    ("overdue_s", "outcome", "text"),
    [
        (0.1, "valid", ""),
        (0.2, "degraded", "for 0.2 s in all, which may have lengthened communication by up to 7.0 % of itself"),
        (0.2, "degraded", "(limit 5 %) and iterations by up to 3.0 %"),
        (0.7, "invalid", "up to 24.3 % of itself (limit 20 %) and iterations by up to 10.4 %"),
        (60.0, "invalid", "iterations by up to"),
    ],
)
def test_few_packets_that_are_very_late_count_by_what_they_may_have_cost(
    overdue_s: float, outcome: str, text: str
) -> None:
    """Of a hundred packets one is 15 ms late: no percentile shows it, and every iteration waits for it."""
    found, reasons = judge(with_link(delay_s=1e-3, delay_line=delay_line(overdue_s=overdue_s)))
    assert found == outcome
    assert text in "".join(reasons)


def test_programs_that_delay_packets_count_what_is_later_than_the_verdict_allows() -> None:
    source = Path(native.__file__).with_name("link_program.h").read_text()
    (limit,) = re.findall(r"fmax\((\d+), delay_ns / (\d+)\)", source)
    assert tuple(map(int, limit)) == (round(1e9 * LATENESS_FLOOR_S), round(1 / LATENESS_SHARE_DEGRADED))


def test_lateness_is_virtual_and_costs_no_more_than_is_beyond_the_links() -> None:

    def late(overdue_s: float, *, bound_s: float, dilation: float = 1.0) -> bool:
        soon = replace(PREDICTION, schedule_bound_s=bound_s)
        known = replace(with_link(delay_line=delay_line(overdue_s=overdue_s)), prediction=soon, dilation=dilation)
        return any("let go later" in reason for reason in judge(known)[1])

    on_the_wall = [late(0.05, bound_s=0.75, dilation=dilation) for dilation in (1.0, 4.0)]
    assert on_the_wall == [False, True], "0.2 s of the second"
    assert late(0.7, bound_s=3.0)
    assert not late(0.7, bound_s=5.75), "what is as fast as its links was not held up"


def test_of_a_command_lateness_is_compared_with_its_time() -> None:
    command = CommandSummary(
        argv=["iperf3"], backend=None, redirected=[], launcher=False, start_s=10.0, time_s=10.0, workers=[]
    )

    def late(overdue_s: float) -> Said:
        known = with_link(delay_line=delay_line(overdue_s=overdue_s), expected_bytes=None)
        nothing: dict[str, Any] = {"iterations": iterations(), "buckets": buckets(), "prediction": None}
        return judge(replace(known, command=command, command_end_s=20.0, **nothing))

    assert late(0.49)[0] == "valid"
    outcome, (reason,) = late(0.51)
    assert outcome == "degraded"
    assert "for 0.51 s in all, and the command took 10 s (limit 5 % of it)" in reason


def test_a_delay_that_became_shorter_is_what_lateness_is_compared_with() -> None:
    row = {"at_s": 11.0, "link": "w0-s0", "node": "w0", "to": "s0", "setting": "delay", "before": "20ms"}
    row |= {"after": "1ms", "rate_bps": 100e6, "source": "schedule"}
    known = with_link(delay_s=20e-3, delay_line=delay_line(late_p99_s=1e-3))
    assert judge(known)[0] == "valid"
    outcome, reasons = judge(replace(known, changes=pl.DataFrame([row], schema=CHANGE_SCHEMA)))
    assert outcome == "degraded"
    assert "limit 300 us" in reasons[0]


def test_a_wake_up_counts_less_where_time_is_dilated() -> None:
    """At dilation 50: 300 us of the wall are 6 us of a link whose delay is 5 us."""

    def late(late_s: float, dilation: float) -> bool:
        known = with_link(delay_s=5e-6, delay_line=delay_line(late_p99_s=late_s))
        return any("let go later" in reason for reason in judge(replace(known, dilation=dilation))[1])

    assert [late(5.9e-6, 50.0), late(7e-6, 50.0), late(7e-6, 1.0)] == [False, True, False]


def test_packets_that_the_delay_line_dropped_are_invalid() -> None:
    outcome, (reason, *_) = judge(with_link(delay_line=delay_line(num_dropped=3)))
    assert outcome == "invalid"
    assert "w0 → s0: 3 packets" in reason


def test_retransmissions_without_loss_or_drops_degrade() -> None:
    outcome, (reason,) = judge(with_link(retransmitted_bytes=200_000))
    assert outcome == "degraded"
    assert "200,000 bytes" in reason
    assert judge(with_link(retransmitted_bytes=3_000))[0] == "valid", "a few tail-loss probes are normal"


def test_a_packet_filter_that_somebody_set_explains_them_better_than_timers() -> None:
    change = "w1: packet filter set by process 4711 (iptables)"
    outcome, reasons = judge(replace(with_link(retransmitted_bytes=200_000), foreign_changes=[change]))
    assert outcome == "invalid"
    assert change in reasons[0]
    assert "a packet filter that somebody set dropped them" in reasons[1]
    assert "timers" not in reasons[1]


@pytest.mark.parametrize("cause", [{"may_drop": True}, {"drops_end": 4}])
def test_loss_on_a_later_link_explains_retransmissions_on_an_earlier_one(cause: dict[str, Any]) -> None:
    earlier = replace(LINK, class_bytes_end=60_500_000, retransmitted_bytes=500_000)
    later = replace(LINK, name="w1-s0", from_="s0", to="w1", **cause)
    assert judge(facts(links=[earlier, later]))[0] == "valid"


@pytest.mark.parametrize(
    ("share", "outcome", "text"),
    [(0.0, "valid", ""), (0.05, "valid", ""), (0.073, "degraded", "7.3 %"), (0.31, "invalid", "31.0 %")],
)
def test_communication_threads_waiting_for_a_core(share: float, outcome: str, text: str) -> None:
    verdict, reasons = judge(waiting(share))
    assert verdict == outcome
    assert text in "".join(reasons)


def probed(sent: float, **changes: Any) -> Facts:
    """400 probes in which 100 MB were due."""
    reported: dict[str, Any] = {
        "watched_s": 8.0,
        "held_share": 1.0,
        "num_probes": 400,
        "due_bytes": 100e6,
        "sent_bytes": int(sent * 100e6),
        "chance": 0.0166,
    }
    return with_link(backlog=BacklogSummary(**{**reported, **changes}))


@pytest.mark.parametrize(
    ("sent", "outcome", "words"),
    [
        (1.0, "valid", ""),
        (0.985, "valid", ""),  # 1.7 % may be chance
        (0.97, "valid", ""),
        (0.93, "degraded", "links sent less than their rate while packets waited"),
        (0.80, "invalid", "80.0 % of rate x time in 400 probes"),
        (1.09, "invalid", "links sent more than their rate"),
    ],
)
def test_a_link_with_packets_waiting_sends_at_its_rate(sent: float, outcome: str, words: str) -> None:
    verdict, reasons = judge(probed(sent))
    assert verdict == outcome
    assert words in "".join(reasons)


def test_a_link_without_a_rate_cannot_exceed_it() -> None:
    # An aggregator's own link, measured at 57 Gbit/s in real time, at dilation 100.
    assert judge(with_link(rate_bps=UNSHAPED_BPS, measured_rate_bps=5.7e12, burst_bytes=0))[0] == "valid"
    assert judge(with_link(rate_bps=MAX_RATE_BPS, measured_rate_bps=1.02 * MAX_RATE_BPS))[0] == "invalid"


def test_a_few_probes_prove_little() -> None:
    few = probed(0.0, num_probes=2, due_bytes=400_000, sent_bytes=330_000, chance=0.29)
    assert judge(few)[0] == "valid"


def test_saturated_cores_explain_a_reason_but_are_none() -> None:
    # From 11 s to 13 s no core is idle, of 10.75 s to 16.5 s in which buckets are under way.
    assert judge(facts()) == ("valid", [])
    _, (reason,) = judge(waiting(0.1))
    assert "cores were saturated for 35 % of communication" in reason
    assert "use fewer workers, a lower rate or a larger dilation" in reason


def test_packets_dropped_by_the_kernels_input_queue_degrade() -> None:
    outcome, (reason,) = judge(facts(softnet_drops=7))
    assert (outcome, "7 packets" in reason, "netdev_max_backlog" in reason) == ("degraded", True, True)


def test_steal_degrades() -> None:
    assert judge(facts(steal_share=0.02))[0] == "valid"
    outcome, (reason,) = judge(facts(steal_share=0.034))
    assert (outcome, "3.4 %" in reason) == ("degraded", True)


def test_the_worst_reason_decides_and_comes_first() -> None:
    other = replace(LINK, name="w1-s0", from_="s0", to="w1", retransmitted_bytes=10**6)
    outcome, reasons = judge(waiting(0.1, links=[replace(LINK, class_bytes_end=1), other], steal_share=0.1))
    assert outcome == "invalid"
    assert len(reasons) == 4
    assert "bytes on the wire" in reasons[0]


def test_many_links_make_one_sentence_with_the_worst_first() -> None:
    links = [
        replace(LINK, name=f"w{rank}-s0", from_=f"w{rank}", rate_bps=1e9, class_bytes_end=60_010_000 + rank * 1_000_000)
        for rank in range(32)
    ]
    _, (reason,) = judge(facts(links=links))
    assert "w31 → s0" in reason.split(";")[0]
    assert "and 28 more" in reason


def throttled(cpu_cores: float | None, share: float = 0.4) -> Facts:
    quota = Quota(name="w1", cpu_cores=cpu_cores, throttled_share=share, throttled_s=2.0, waiting_share=0.3)
    return facts(quotas=[quota])


def test_throttling_that_was_requested_is_named_and_does_not_degrade() -> None:
    outcome, (note,) = judge(throttled(0.5))
    assert outcome == "valid"
    assert "w1 was held to 0.5 cores as requested: throttled in 40 %" in note
    assert "communication" in note
    assert "30 %" in note


@pytest.mark.parametrize(("share", "outcome"), [(0.05, "degraded"), (0.4, "invalid")])
def test_throttling_that_nobody_requested_counts_against_the_run(share: float, outcome: str) -> None:
    found, (reason,) = judge(throttled(None, share))
    assert found == outcome
    assert "did not ask for" in reason


def test_bytes_that_background_may_have_sent_widen_the_check_and_say_so() -> None:
    outcome, (note,) = judge(with_link(bytes=61_000_000, background_uncertain_bytes=1_000_000))
    assert outcome == "valid"
    assert "w0 → s0: 1,000,000 bytes of 60,010,000" in note
    assert judge(with_link(bytes=62_000_000, background_uncertain_bytes=1_000_000))[0] == "invalid"
    assert judge(with_link(background_uncertain_bytes=100_000)) == ("valid", [])


def test_a_source_that_did_not_get_to_run_degrades_and_one_whose_link_is_full_does_not() -> None:
    flow = BackgroundSummary(
        from_="w0",
        to="w3",
        kind="constant",
        requested="10mbit",
        offered_bps=1e7,
        sent_bps=8e6,
        received_bps=8e6,
        blocked_share=0.2,
        late_share=0.0,
    )
    outcome, (note,) = judge(facts(background=[flow]))
    assert outcome == "valid"
    assert "could not send 20.0 % of its packets" in note
    outcome, (reason,) = judge(facts(background=[flow.model_copy(update={"late_share": 0.03, "blocked_share": 0.0})]))
    assert outcome == "degraded"
    assert "background w0 → w3 (constant) sent 3.0 % less than requested" in reason


def test_counters_of_prometheus_that_are_not_the_records_degrade_the_run() -> None:
    line = "testbed_link_drops_total of w0 on w0-s0 was never scraped"
    seen = PrometheusSummary(data="d", num_scrapes=1, num_series=1, compared_s=1.0, differences=[line])
    outcome, (reason,) = judge(facts(prometheus=seen))
    assert outcome == "degraded"
    assert line in reason


@pytest.mark.parametrize(("latest_s", "outcome"), [(None, "valid"), (0.0199, "valid"), (0.0201, "degraded")])
def test_one_packet_that_left_much_too_late_says_that_the_program_stood_still(
    latest_s: float | None, outcome: str
) -> None:
    judged, reasons = judge(with_link(delay_s=1e-3, delay_line=delay_line(late_max_s=latest_s)))
    assert judged == outcome
    assert all("w0 → s0: a packet left 20 ms late" in reason for reason in reasons)


def test_settings_that_somebody_else_changed_are_invalid_put_back_or_not() -> None:
    change = "w0: traffic class set on w0-eth0 by process 4711 (tc)"
    outcome, (reason,) = judge(facts(foreign_changes=[change, change]))
    assert outcome == "invalid"
    assert reason.count(change) == 1


def test_what_others_did_to_workers_degrades_and_is_named() -> None:
    outcome, (reason,) = judge(facts(interference=["w1 was stopped for 2.0 s (SIGSTOP, or a debugger)"]))
    assert outcome == "degraded"
    assert "w1 was stopped for 2.0 s" in reason


def test_sources_that_changed_under_the_process_degrade_and_are_named_where_a_run_failed_too() -> None:
    outcome, (reason,) = judge(facts(code_changed=True))
    assert outcome == "degraded"
    assert reason.startswith("the testbed's sources were changed")
    outcome, reasons = judge(facts(code_changed=True, end=End("failed", "w1 has no such attribute")))
    assert (outcome, reasons) == ("failed", ["w1 has no such attribute", reason])


def test_servers_that_wait_for_a_core_hold_everybody_up_and_are_named() -> None:
    assert judge(facts(serving_waited_s={"ps0": 0.02, "ps1": 0.01})).outcome == "valid"
    outcome, (reason,) = judge(facts(serving_waited_s={"ps0": 0.4, "ps1": 0.2}))
    assert outcome == "degraded"
    assert "threads that move gradients waited for a core" in reason
    assert "(ps0 waited longest, 0.4 s)" in reason
    assert judge(facts(serving_waited_s={"a0": 2.0})).outcome == "invalid"
    outcome, (reason,) = judge(replace(waiting(0.15), serving_waited_s={"ps0": 0.1}))
    assert "waited longest" not in reason, "a worker did"


def test_threads_that_wait_at_the_same_time_are_judged_once_and_the_longest_is_named() -> None:
    def judged(*rows: tuple[str, float, float]) -> Said:
        columns = ["host", "computing", "behind", "begin_s", "end_s"]
        waits = pl.DataFrame(
            [dict(zip(columns, (host, False, False, *span), strict=True)) for host, *span in rows], schema=WAIT_SCHEMA
        )
        return judge(facts(waits=waits, serving_waited_s={"ps0": 9.0}, prediction=None))

    assert judged(("w0", 13.5, 13.625), ("ps0", 13.5, 13.6)).outcome == "valid", "0.125 of 2.875 s each"
    outcome, (reason,) = judged(("w0", 13.5, 13.75), ("ps0", 13.5, 14.0))
    assert outcome == "degraded"
    assert "may have lengthened communication by up to 17.4 % of itself" in reason, "0.5 of 2.875 s"
    assert "some thread waited for 0.5 s in all, of ps0 for 0.5 s" in reason
    assert judged(("w0", 13.5, 15.0)).outcome == "invalid"


def test_the_least_that_links_allow_is_that_of_the_fastest_they_were() -> None:
    def judged(after_bps: float) -> Said:
        """Exchanges took 5.75 s, of which threads waited for 2.875; at the first rate they need 5.75 s."""
        row = {"at_s": 9.0, "link": "w0-s0", "node": "w0", "to": "s0", "setting": "rate", "before": "", "after": ""}
        changes = pl.DataFrame([row | {"rate_bps": after_bps, "source": "schedule"}], schema=CHANGE_SCHEMA)
        bound = replace(PREDICTION, schedule_bound_s=5.75)
        return judge(waiting(0.5, changes=changes, prediction=bound))

    assert judged(1e8).outcome == "valid", "no rate was raised"
    outcome, (reason, *_) = judged(1e9)
    assert outcome == "invalid"
    assert "may have lengthened communication by up to 5" in reason


def test_the_time_of_hidden_communication_that_is_mostly_waiting_is_never_given() -> None:
    """Exchanges of 0.06 s in iterations of 6.75 s: too little to change these, and all that all-reduce is."""
    hidden: dict[str, Any] = {"backward_compute_end_s": 15.9, "backward_end_s": 15.9}
    found = facts(
        iterations=iterations(*(iteration(rank, 10.0, **hidden) for rank in range(2))),
        buckets=buckets(*(bucket(rank, 13.0, 13.06) for rank in range(2))),
        waits=pl.DataFrame([("w0", False, False, 13.01, 13.05)], schema=WAIT_SCHEMA, orient="row"),
        links=[replace(LINK, class_bytes_end=600_000, expected_bytes=600_000)],
        prediction=replace(PREDICTION, schedule_bound_s=0.01),
    )
    assert judge(found)[0] == "valid", "iterations stand"
    took = measure(found).allreduce
    assert took is not None
    assert took.time_s is None
    assert took.missing is not None
    assert "up to 67 % of it may have been waiting for a core (limit 5 %)" in took.missing
    assert "up to 0.0 % of the iterations" in took.missing


def test_as_many_exchanges_begin_with_a_burst_as_were_made() -> None:
    """Two were planned; where time decides what is fused there are more, and each may be earlier by a burst."""
    made = [bucket(rank, 12.0 + number, 12.5 + number) for rank in range(2) for number in range(5)]
    assert facts(num_buckets=2, buckets=buckets(*made)).num_bursts == 5
    assert facts(num_buckets=7, buckets=buckets(*made)).num_bursts == 7, "of a baseline not all are seen"
    odd = [*made, bucket(0, 20.0, 20.5, index=1), bucket(1, 20.0, 20.5, index=1)]
    assert facts(num_buckets=2, buckets=buckets(*odd)).num_bursts == 3
    assert facts(buckets=buckets()).num_bursts == 1


def test_an_exchange_has_the_links_from_its_first_worker_s_start_to_its_last_one_s_result() -> None:
    def judged(bound_s: float) -> Said:
        staggered = buckets(bucket(0, 10.5, 14.9), bucket(1, 11.9, 16.5))
        return judge(facts(buckets=staggered, prediction=replace(PREDICTION, schedule_bound_s=bound_s)))

    assert judged(4.6) == ("valid", [])
    outcome, (note,) = judged(5.9)
    assert outcome == "valid"
    assert "it takes each of them 4.6 s and all of them together 6 s, and its bytes need 5.9 s" in note
    outcome, (reason,) = judged(6.1)
    assert outcome == "invalid"
    assert "an all-reduce took 6 s, and its bytes alone need 6.1 s" in reason


def test_figures_that_cannot_be_are_invalid_by_themselves() -> None:
    outcome, (reason,) = judge(with_link(bytes=120_000_000, expected_bytes=None))
    assert outcome == "invalid"
    assert "physically impossible (w0 → s0 carried 120,000,000 bytes on average, in which its rate and burst" in reason
    assert "w0 → s0 carried 120,000,000 bytes while buckets were in service, in which its rate and burst" in reason


@pytest.mark.parametrize(
    ("kind", "outcome"), [("failed", "failed"), ("not calibrated", "invalid"), ("unsupported", "unsupported")]
)
def test_a_run_that_ended_early_is_judged_by_what_ended_it_and_by_nothing_that_it_left_unmeasured(
    kind: Any, outcome: str
) -> None:
    assert judge(facts(end=End(kind, "w1 was killed"), steal_share=0.5)) == (outcome, ["w1 was killed"])
    foreign = "w0: packet filter set by process 4711 (iptables)"
    _, reasons = judge(facts(end=End(kind, "w1 was killed"), foreign_changes=[foreign]))
    assert any(foreign in reason for reason in reasons)


def test_workers_that_disagree_about_the_parameters_have_failed() -> None:
    outcome, reasons = judge(facts(parameters_sha256=["aa", "ab"], steal_share=0.5))
    assert outcome == "failed"
    assert "2 different sets of parameters" in reasons[0]


def test_a_backend_that_nobody_used_degrades() -> None:
    text = "workload.backend: no process group was made by testbed"
    assert judge(facts(unused_backend=text)) == ("degraded", [text])


def test_other_load_while_a_worker_computed_alone_degrades_its_scaling_factor() -> None:
    def reported(waited_s: float) -> Facts:
        alone = [
            iteration(rank, 100.0 + 10 * rank + index, "compute_alone", index, backward_end_s=0.0)
            | {"data_end_s": 100.0, "run_queue_delay_s": waited_s}
            for rank in range(2)
            for index in range(4)
        ]
        for row in alone:
            start_s = float(str(row["start_s"]))
            row |= {"data_end_s": start_s, "host_to_device_end_s": start_s}
            row |= {"forward_end_s": start_s + 1, "backward_compute_end_s": start_s + 2.75}
            row |= {"backward_end_s": start_s + 2.75, "optimizer_end_s": start_s + 3.25, "end_s": start_s + 3.5}
        measured = [iteration(0, 10.0), iteration(1, 10.25)]
        return facts(iterations=iterations(*alone, *measured))

    assert judge(reported(0.1)) == ("valid", [])
    outcome, (reason, *_) = judge(reported(0.5))
    assert outcome == "degraded"
    assert "w0 waited for a core for 14 % of the time in which it computed alone" in reason
    limited = replace(reported(0.5), limited_ranks=frozenset({0, 1}))
    assert judge(limited) == ("valid", []), "it waits by design"


def test_servers_that_waited_for_cores_count_where_every_worker_waits_by_design() -> None:
    waits = pl.DataFrame([("ps0", False, False, 13.0, 15.0)], schema=WAIT_SCHEMA, orient="row")
    limited = facts(limited_ranks=frozenset({0, 1}), waits=waits)
    assert judge(limited)[0] == "invalid"
    assert judge(replace(limited, waits=waits.clear())) == ("valid", [])
    summed = replace(waiting(0.5), limited_ranks=frozenset({0, 1}), waits=None)
    assert judge(summed) == ("valid", []), "their own waits are by design"
    assert judge(replace(summed, serving_waited_s={"ps0": 2.0}))[0] == "invalid"


def test_gradients_that_are_gathered_to_be_verified_degrade_a_run() -> None:
    outcome, (reason,) = judge(facts(verifies_gradients=True))
    assert outcome == "degraded"
    assert "workload.verify_gradients" in reason


def loaded_by_others(share: float, phase: str) -> Facts:
    """Each worker computed alone on quiet cores; others had their share of them when all computed at once, or in the
    measured iterations. Computing has no pace."""
    alone = [iteration(rank, 100.0 * rank + 4 * index, "compute_alone", index) for rank in (1, 2) for index in range(4)]
    for row in alone:
        start_s = float(str(row["start_s"]))
        row |= {"rank": int(str(row["rank"])) - 1, "backward_end_s": start_s + 3, "optimizer_end_s": start_s + 3.5}
        row |= {"end_s": start_s + 4}
    only = [iteration(rank, 1000.0, "compute_only", cpu_s=0.0) for rank in range(2)]
    measured = [iteration(0, 10.0), iteration(1, 10.25)]
    others = Programs(share, ("cc1plus (process 4711) 9 %",))
    return facts(iterations=iterations(*alone, *only, *measured), other_programs={phase: others})


def test_other_programs_in_the_measured_iterations_lengthen_computing_without_a_pace() -> None:
    took = "other programs took 30 % of the cores (cc1plus (process 4711) 9 %) while iterations were measured"
    assert judge(loaded_by_others(0.09, "measured")) == ("valid", [])
    assert judge(loaded_by_others(0.2, "measured"))[0] == "degraded"
    known = loaded_by_others(0.3, "measured")
    outcome, (reason,) = judge(known)
    assert outcome == "invalid"
    assert reason.startswith(f"{took} (limit 25 %)")
    paced = replace(known, iterations=known.iterations.with_columns(pace_s=pl.lit(3.0)))
    assert judge(paced) == ("valid", [took]), "it kept its pace all the same"


def test_network_efficiency_is_not_given_where_other_programs_had_the_cores_without_communication() -> None:
    some, many = loaded_by_others(0.2, "compute_only"), loaded_by_others(0.3, "compute_only")
    assert measure(some).scaling_factor is not None
    assert measure(some).network_efficiency is not None
    outcome, (reason,) = judge(some)
    assert outcome == "degraded"
    assert "while the workers computed without communicating (limit 10 %): network efficiency compares" in reason
    assert measure(many).network_efficiency is measure(many).compute_only_time_s is None
    outcome, (reason,) = judge(many)
    assert outcome == "degraded", "all that is shown stands, and more of the same load is never the better verdict"
    assert "(limit 25 %): there is no network efficiency" in reason
    paced = replace(many, iterations=many.iterations.with_columns(pace_s=pl.lit(3.0)))
    assert judge(paced) == ("valid", []), "it kept its pace all the same"
    assert measure(paced).network_efficiency is not None
    without = pl.col("phase") == "compute_only"
    late = paced.iterations.with_columns(overrun_s=pl.when(without).then(3.0).otherwise(pl.col("overrun_s")))
    assert measure(replace(paced, iterations=late)).scaling_factor is not None
    assert measure(replace(paced, iterations=late)).network_efficiency is None, "only the iterations kept it"
    assert judge(replace(paced, iterations=late))[0] == "degraded"


def test_cores_that_the_hypervisor_had_without_communication_count_as_those_of_other_programs() -> None:
    known = loaded_by_others(0.0, "compute_only")
    some, many = (
        replace(known, other_programs={"compute_only": Programs(0.02, stolen_share=stolen)}) for stolen in (0.1, 0.3)
    )
    assert judge(some)[0] == judge(many)[0] == "degraded"
    assert "and the hypervisor 30 % while the workers computed without communicating" in judge(many)[1][0]
    assert measure(some).network_efficiency is not None
    assert measure(many).network_efficiency is None
    assert judge(replace(known, other_programs={"compute_only": Programs(0.02, stolen_share=0.05)})) == ("valid", [])


def test_other_programs_beside_what_does_not_compute_are_named_and_change_nothing() -> None:
    """Threads that move gradients are seen waiting where they do."""
    known = facts(other_programs={"measured": Programs(0.3)})
    assert judge(known) == ("valid", ["other programs took 30 % of the cores while iterations were measured"])
    assert judge(replace(known, other_programs={"measured": Programs(0.09)})) == ("valid", [])


@pytest.mark.parametrize(("share", "outcome"), [(0.05, "valid"), (0.15, "degraded"), (0.3, "invalid")])
def test_other_programs_beside_workers_that_wait_by_design_are_judged(share: float, outcome: str) -> None:
    """Their threads' waits are not counted, so nothing shows which of them others caused."""
    limited = facts(limited_ranks=frozenset({0, 1}), other_programs={"measured": Programs(share)})
    paced = replace(limited, iterations=limited.iterations.with_columns(pace_s=pl.lit(3.0)))
    for known in (limited, paced):
        found, reasons = judge(known)
        assert found == outcome
        assert any("held to a share of the cores wait for them in any case" in text for text in reasons) == (
            outcome != "valid"
        )


@pytest.mark.parametrize(("share", "outcome"), [(0.05, "valid"), (0.15, "degraded"), (0.3, "degraded")])
def test_other_programs_command_among_others_are_judged(share: float, outcome: str) -> None:
    found, reasons = judge(command_among_others(share))
    assert found == outcome
    assert any("while the command ran" in text for text in reasons) == (outcome != "valid")


def test_one_late_iteration_of_few_counts_by_what_it_adds_to_the_mean() -> None:
    def late(*shares: float) -> Facts:
        rows = [
            iteration(rank, 10.0 + 7 * index, "measured", index, pace_s=2.0, overrun_s=2.0 * share)
            for rank in range(2)
            for index, share in enumerate(shares)
        ]
        return facts(iterations=iterations(*rows))

    def overrun(known: Facts) -> bool:
        return any("computing overran its pace" in reason for reason in judge(known)[1])

    assert not overrun(late(0.024, 0.0))
    assert overrun(late(0.05, 0.0))
    assert overrun(late(0.024, 0.024, 0.0))
