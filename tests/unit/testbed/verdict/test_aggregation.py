"""What is made of the counters."""

from typing import Any

import pytest

from switch_agg.aggregator import Stragglers
from switch_agg.slot_latency import NUM_BUCKETS, begin_s
from testbed.control.worker import SwitchStatistics
from testbed.deployment.aggregators import AggregatorReport
from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan
from testbed.verdict.aggregation import SwitchedBytes, aggregator_summaries, losses, switched_bytes, violations
from testbed.worker.tenant import TenantReport


def plan(dataplane: str, *, at: str | None = None, **keys: Any) -> Plan:
    collective = {"kind": "in_network", "dataplane": dataplane, "at": at}
    return make_plan(validate({"name": "x", "collective": collective, **keys}))


def statistics(lost: str | None = None) -> SwitchStatistics:
    before: dict[str, Any] = dict.fromkeys(("repeated", "timeouts", "fast_retransmissions", "duplicates", "partial"), 1)
    before |= {"slot_latencies": [0, 7, 1, 0, *[0] * (NUM_BUCKETS - 4)]}
    after: dict[str, Any] = {"repeated": 11, "timeouts": 3, "fast_retransmissions": 4, "duplicates": 5, "partial": 7}
    after |= {"slot_latencies": [0, 7, 60, 0, 41, *[0] * (NUM_BUCKETS - 5)]}
    common = {"frame_bytes": 1080, "lost": lost}
    reported = SwitchStatistics.of_result({"before": before | common, "after": after | common})
    assert reported is not None
    return reported


def test_only_what_happened_in_the_measured_iterations_counts() -> None:
    found = statistics()
    assert (found.repeated, found.sent_again, found.received_again, found.partial) == (10, 5, 4, 6)


def test_slots_latencies_are_those_of_all_workers_in_the_measured_iterations() -> None:
    (aggregator,) = plan("reference").aggregators
    report = AggregatorReport(plan=aggregator, counters={"done": 7})
    (summary,) = aggregator_summaries([report], {rank: statistics() for rank in range(4)})
    found = summary.slot_latency
    assert found is not None
    assert (found.num_chunks, found.counts) == (400, [4 * 59, 0, 4 * 41])
    assert found.edges_s == [begin_s(number) for number in (2, 3, 4, 5)]
    assert (found.median_s, found.p99_s) == (begin_s(3), begin_s(5))
    assert aggregator_summaries([report], {})[0].slot_latency is None


def test_chunks_done_again_are_expected_and_those_sent_again_are_not() -> None:
    made = plan("reference")
    each = {rank: statistics() for rank in range(4)}
    for direction in made.directions:
        found = switched_bytes(made, direction, each)
        assert found is not None
        links = 4 if "a0" in direction.hop else 1
        assert found.repeated == links * 10 * 1080
        assert found.retransmitted == links * 5 * 1080, "an answer that is lost is no duplicate, and crossed the link"


def test_above_a_leaf_chunks_are_done_again_once_and_sent_again_by_any_of_its_workers() -> None:
    made = plan("ebpf", at="tree", topology={"kind": "leaf_spine", "leaves": 2, "spines": 1})
    found = {
        direction.name: switched_bytes(made, direction, {rank: statistics() for rank in range(4)})
        for direction in made.directions
    }
    assert found["w0 -> s0"] == SwitchedBytes(repeated=10 * 1080, retransmitted=5 * 1080)
    assert found["s2 -> s1"] == found["s1 -> s2"] == SwitchedBytes(repeated=10 * 1080, retransmitted=2 * 5 * 1080)


def test_other_jobs_are_summed_up_and_their_wrong_sums_are_the_run_s() -> None:
    collective = {"kind": "in_network", "tenants": [{"workers": ["x0", "x1"], "num_slots": 64}]}
    hosts = {"x0": {"at": "s0"}, "x1": {"at": "s0"}}
    (aggregator,) = make_plan(validate({"name": "x", "collective": collective, "hosts": hosts})).aggregators
    members = (TenantReport(reductions=9, chunks_sent=5), TenantReport(reductions=8, chunks_sent=6))
    report = AggregatorReport(plan=aggregator, tenants=(members,))
    (summary,) = aggregator_summaries([report], {})
    assert summary.tenants[0].model_dump() == {
        "workers": ["x0", "x1"],
        "num_slots": 64,
        "size_bytes": 1 << 20,
        "reductions": 8,
        "chunks_sent": 11,
    }
    assert violations([report]) == []
    job = "aggregator a0 at s0 (ebpf), job 1 of x0, x1: 1MiB at a time in slots 128 to 191: "
    wrong = AggregatorReport(plan=aggregator, tenants=((TenantReport(reductions=9, wrong=2), members[1]),))
    assert violations([wrong]) == [job + "2 of 17 sums were wrong"]
    ended = AggregatorReport(plan=aggregator, tenants=((TenantReport(failure="epoch 1\nlog"), members[1]),))
    assert violations([ended]) == [job + "epoch 1"]
    assert violations([ended], {0: statistics("gone")}) == []


def test_nothing_is_expected_where_the_program_takes_packets_off_or_the_switch_was_lost() -> None:
    made = plan("ebpf")
    last = made.directions[-1]
    found = switched_bytes(made, last, {0: statistics()})
    assert found is not None
    assert found.repeated == found.retransmitted == 0
    assert switched_bytes(made, made.directions[0], {0: statistics("gone")}) is None


def test_the_summary_names_what_was_counted_and_what_was_lost() -> None:
    (aggregator,) = plan("reference").aggregators
    good = AggregatorReport(
        plan=aggregator,
        counters={"done": 7, "duplicate_done": 1, "duplicate_pending": 2, "bad_job": 1, "bad_size": 3},
        violations=("7 received and 6 accounted for",),
        stragglers=Stragglers(gaps=(0,) * 10 + (6, 1) + (0,) * 20, last=(0, 1, 5, 1)),
    )
    (summary,) = aggregator_summaries([good], {0: statistics()})
    assert (summary.chunks, summary.duplicates, summary.bad, summary.retransmitted) == (7, 3, 4, 5)
    assert (summary.wait_median_s, summary.wait_p99_s) == pytest.approx((2**10 * 1e-6, 2**11 * 1e-6))
    assert (summary.last, summary.last_share) == ("w2", pytest.approx(5 / 7))
    assert summary.lost is None
    assert violations([good]) == ["aggregator a0 at s0 (reference): 7 received and 6 accounted for"]
    dead = AggregatorReport(plan=aggregator, failure="it was killed by signal 9\nand its log")
    assert aggregator_summaries([dead], {0: statistics("no result")})[0].last is None
    assert losses([dead], {0: statistics("no result")}) == ["it was killed by signal 9"]
    assert violations([dead], {0: statistics("no result")}) == []
    # The kernel's program may go on after its process: then nobody lost it, and nobody knows what it did.
    assert losses([dead], {0: statistics()}) == []
    assert violations([dead], {0: statistics()}) == [
        "aggregator a0 at s0 (reference): it was killed by signal 9, so its counters are unknown"
    ]
    assert losses([good], {0: statistics("no result"), 1: statistics("no result")}) == ["no result"]


def test_of_workers_that_report_no_counts_nothing_is_said_but_why_they_lost_the_switch() -> None:
    (aggregator,) = plan("reference").aggregators
    dead = AggregatorReport(plan=aggregator, failure="it was killed by signal 9\nand its log")
    good = AggregatorReport(plan=aggregator, counters={"done": 7, "duplicate_done": 1})
    (summary,) = aggregator_summaries([good], {})
    assert (summary.chunks, summary.duplicates) == (7, 1)
    assert summary.repeated is summary.retransmitted is summary.partial is summary.lost is None
    said = ["another epoch has begun", "no result"]
    assert losses([good], {}, said) == said
    assert aggregator_summaries([good], {}, said=said)[0].lost == said[0]
    assert losses([dead], {}, said) == ["it was killed by signal 9"]
    assert violations([dead], {}, said) == []
    assert len(violations([dead], {})) == 1
