"""When bytes could move."""

from dataclasses import replace

import pytest

from testbed.experiment.link import MAX_RATE_BPS, UNSHAPED_BPS
from testbed.verdict.utilization import busy, busy_utilization, mean_utilization, under_way
from tests.facts import LINK, facts, samples
from tests.rows import bucket, buckets


def spans(found: tuple[object, object]) -> list[tuple[float, float]]:
    return list(zip(*(each.tolist() for each in found), strict=True))  # type: ignore[attr-defined]


def test_a_bucket_is_under_way_from_its_last_members_hand_over_to_its_last_members_result() -> None:
    rows = buckets(
        {**bucket(0, 12.0, 15.0), "enqueued_s": 11.0},
        {**bucket(1, 14.0, 16.0), "enqueued_s": 13.5},
        bucket(0, 20.0, 21.0, index=1),
        bucket(1, 20.5, 21.5, index=1),
        bucket(0, 1.0, 2.0, phase="warmup"),
    )
    assert spans(under_way(rows)) == [(13.5, 16.0), (20.5, 21.5)]
    assert spans(under_way(rows, since="first")) == [(11.0, 16.0), (20.0, 21.5)]


def test_it_is_the_same_for_a_baseline_that_says_nothing_of_when_it_took_a_bucket_up() -> None:
    ours = [{**bucket(rank, 13.0 + rank, 16.0), "enqueued_s": 11.0 + rank} for rank in range(2)]
    theirs = [{**row, "started_s": row["enqueued_s"], "first_byte_s": row["enqueued_s"]} for row in ours]
    assert spans(under_way(buckets(*ours))) == spans(under_way(buckets(*theirs))) == [(12.0, 16.0)]


def test_workers_that_do_not_wait_for_each_other_have_buckets_of_their_own() -> None:
    rows = buckets(bucket(0, 12.0, 13.0), bucket(1, 15.0, 16.0))
    assert spans(busy(facts(buckets=rows))) == [(15.0, 16.0)]
    assert spans(busy(facts(buckets=rows, synchronisation="asynchronous", in_step=False))) == [
        (12.0, 13.0),
        (15.0, 16.0),
    ]


def test_utilisations_as_calculated_manually() -> None:
    known = facts(samples=samples((11.0, 0), (13.0, 25_000_000), (14.0, 30_000_000)))
    link = replace(LINK, class_bytes_end=40_000_000)
    assert mean_utilization(known, link, 40_000_000) == pytest.approx(40e6 * 8 / (100e6 * 7.0))
    rows = buckets(bucket(0, 12.0, 14.0), bucket(1, 12.0, 14.0))
    times = busy(facts(buckets=rows))
    assert busy_utilization(known, link, times) == pytest.approx(30e6 * 8 / (100e6 * 2)), "what moved from 11 s on"
    unshaped = replace(link, rate_bps=UNSHAPED_BPS)
    assert mean_utilization(known, unshaped, 1) is busy_utilization(known, unshaped, times) is None


def test_the_fastest_link_has_a_utilisation_whatever_rounding_makes_of_its_mean_rate() -> None:
    """Sums of many intervals, and a rate divided by a dilation and multiplied again, are an ulp beyond it."""
    fastest = replace(LINK, rate_bps=MAX_RATE_BPS * (1 + 1e-15))
    assert fastest.rate_bps > MAX_RATE_BPS
    assert mean_utilization(facts(), fastest, 1000) is not None
