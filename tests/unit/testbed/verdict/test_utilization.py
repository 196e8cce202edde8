"""When bytes could move."""

from dataclasses import replace

import pytest

from testbed.experiment.link import MAX_RATE_BPS, UNSHAPED_BPS
from testbed.verdict.facts import Facts, LinkFacts
from testbed.verdict.thresholds import UTILIZATION_LIMIT
from testbed.verdict.utilization import busy, busy_utilization, excesses, mean_utilization, under_way
from tests.facts import LINK, facts, samples
from tests.rows import bucket, buckets, iteration, iterations


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


def test_utilizations_as_calculated_manually() -> None:
    known = facts(samples=samples((11.0, 0), (13.0, 25_000_000), (14.0, 30_000_000)))
    link = replace(LINK, class_bytes_end=40_000_000)
    assert mean_utilization(known, link, 40_000_000) == pytest.approx(40e6 * 8 / (100e6 * 7.0))
    rows = buckets(bucket(0, 12.0, 14.0), bucket(1, 12.0, 14.0))
    times = busy(facts(buckets=rows))
    assert busy_utilization(known, link, times) == pytest.approx(30e6 * 8 / (100e6 * 2)), "what moved from 11 s on"
    reading = replace(link, input_bytes=1)  # from 12 to 13 s half of what moved since 11 s, for it moves at any time
    assert busy_utilization(known, reading, times) == pytest.approx(17.5e6 * 8 / (100e6 * 2))
    unshaped = replace(link, rate_bps=UNSHAPED_BPS)
    assert mean_utilization(known, unshaped, 1) is busy_utilization(known, unshaped, times) is None


def test_what_waits_for_nothing_is_counted_for_as_long_as_it_flows() -> None:
    """At 100 Mbit/s throughout, from half a second before the first worker began to a second after the last."""
    known = facts(samples=samples((10.5, 1_250_000 * 10), (16.0, 1_250_000 * 65)))
    window_s = known.window
    assert window_s == (10.0, 17.0)
    link = replace(LINK, class_bytes_end=1_250_000 * 85, background_bytes=1_250_000 * 85, counted_s=(9.5, 18.0))
    assert mean_utilization(known, link, link.class_bytes) == pytest.approx(1.0)
    assert busy_utilization(known, link, busy(known)) == pytest.approx(1.0)
    assert excesses(replace(known, links=[link])) == []
    gradients = replace(link, background_bytes=0, class_bytes_end=1_250_000 * 35)
    assert mean_utilization(known, gradients, gradients.class_bytes) == pytest.approx(0.5), "of the measured iterations"


def test_the_fastest_link_has_a_utilization_whatever_rounding_makes_of_its_mean_rate() -> None:
    """Sums of many intervals, and a rate divided by a dilation and multiplied again, are an ulp beyond it."""
    fastest = replace(LINK, rate_bps=MAX_RATE_BPS * (1 + 1e-15))
    assert fastest.rate_bps > MAX_RATE_BPS
    assert mean_utilization(facts(), fastest, 1000) is not None


def exchanges(num: int, *, beyond_bytes: int = 0) -> tuple[Facts, LinkFacts]:
    """So many exchanges of 1 ms on a link of 100 Mbit/s, apart from each other, each of as many bytes as the link can
    carry in its time, beginning with a burst; the last one may have more."""
    rows = [
        bucket(rank, 11 + 0.004 * each, 11.001 + 0.004 * each, index=each) for rank in range(2) for each in range(num)
    ]
    at_once_bytes = LINK.burst_bytes + facts().granule_bytes
    carried_bytes = int(num * (UTILIZATION_LIMIT * 12_500 + at_once_bytes)) - 1 + beyond_bytes
    link = replace(LINK, class_bytes_end=carried_bytes, expected_bytes=None)
    return facts(buckets=buckets(*rows), links=[link]), link


@pytest.mark.parametrize("num", [1, 2, 100])
def test_each_exchange_may_begin_with_a_burst_and_none_may_carry_a_byte_more(num: int) -> None:
    known, link = exchanges(num)
    assert (busy_utilization(known, link, busy(known)) or 0.0) > 2.1, "short exchanges are mostly bursts"
    assert excesses(known) == []
    (found,) = excesses(exchanges(num, beyond_bytes=3)[0])
    assert found.when == "while buckets were in service"
    assert 0 < found.carried_bytes - found.possible_bytes < 3


def test_bursts_do_not_add_up_where_the_network_is_never_at_rest() -> None:
    """As many buckets, one right after the other: one burst is all that their links had."""
    known, _ = exchanges(100)
    rows = buckets(*(bucket(rank, 11.0, 11.1) for rank in range(2)))
    (found,) = excesses(replace(known, buckets=rows))
    assert found.possible_bytes == pytest.approx(UTILIZATION_LIMIT * 1_250_000 + LINK.burst_bytes + 1514)


def test_a_short_window_may_begin_with_a_burst_too() -> None:
    """On average over the window, in which one burst is all that is free."""
    known, link = exchanges(1)
    window = [iteration(rank, 11.0, end_s=11.001) for rank in range(2)]
    short = replace(known, iterations=iterations(*window))
    assert excesses(short) == []
    faster = replace(link, class_bytes_end=link.class_bytes_end + 3)
    assert [each.when for each in excesses(replace(short, links=[faster]))] == [
        "on average",
        "while buckets were in service",
    ]


def test_what_a_link_without_rate_carried_is_always_possible() -> None:
    known, link = exchanges(1, beyond_bytes=10**9)
    assert excesses(replace(known, links=[replace(link, rate_bps=UNSHAPED_BPS)])) == []
