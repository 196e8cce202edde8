"""What a link can have sent at most, and headline figures that cannot be."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.link import MAX_RATE_BPS, UNSHAPED_BPS
from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.reader import Record
from testbed.record.summary import Results
from testbed.verdict.link_bounds import impossible, out_of_step, overspeeds

NO_CHANGES = pl.DataFrame(schema=CHANGE_SCHEMA)
KEY = ("w0-s0", "w0")
BURSTS = {KEY: 15_000}
GRANULE = 68_000
RATE_BPS = 100e6


@dataclass
class Sender:
    """A direction, sampled."""

    rate_bps: float = RATE_BPS
    at_s: float = 0.0
    sent_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.rows = [self.row(0.0)]

    def row(self, late_s: float) -> dict[str, object]:
        return {
            "at_s": self.at_s + late_s,
            "read_from_s": self.at_s,
            "link": KEY[0],
            "node": KEY[1],
            "class_bytes": int(self.sent_bytes),
            "rate_bps": self.rate_bps,
        }

    def send(self, for_s: float, share: float = 1.0, *, late_s: float = 0.0) -> "Sender":
        self.at_s += for_s
        self.sent_bytes += share * RATE_BPS * for_s / 8
        self.rows.append(self.row(late_s))
        return self

    def found(self) -> list[tuple[int, float]]:
        return [
            (each.sent_bytes, each.possible_bytes)
            for each in overspeeds(pl.DataFrame(self.rows), NO_CHANGES, BURSTS, GRANULE)
        ]


def test_a_link_that_sends_at_its_rate_is_possible() -> None:
    sender = Sender()
    for _ in range(50):
        sender.send(0.1)
    assert sender.found() == []


def test_the_fastest_link_is_watched_whatever_rounding_makes_of_its_rate() -> None:
    sender = Sender(rate_bps=MAX_RATE_BPS * (1 + 1e-15))
    sender.sent_bytes = 2 * MAX_RATE_BPS / 8
    sender.send(1.0)
    sender.rows[0]["class_bytes"] = 0
    assert sender.found() != []


@pytest.mark.parametrize(("share", "possible"), [(1.0, True), (1.1, False)])
def test_virtual_rates_are_held_against_virtual_time(share: float, possible: bool) -> None:
    """The link sends a quarter as much in each second of the wall."""
    sender = Sender()
    for _ in range(50):
        sender.send(0.4, share / 4)
    assert (overspeeds(pl.DataFrame(sender.rows), NO_CHANGES, BURSTS, GRANULE, dilation=4.0) == []) == possible
    assert sender.found() == [], "by the wall it seems to be slow"


def test_twice_the_rate_for_a_moment_is_not() -> None:
    sender = Sender()
    for share in (1, 1, 2, 1, 1):
        sender.send(0.1, share)
    ((sent, possible),) = sender.found()
    assert sent == 2_500_000
    assert possible == pytest.approx(1.01 * 1_250_000 + 83_000, rel=1e-3)


def test_a_tenth_more_shows_over_a_second() -> None:
    sender = Sender()
    for _ in range(20):
        sender.send(0.1, 1.1)
    ((sent, possible),) = sender.found()
    assert sent == pytest.approx(13_750_000, rel=1e-6)
    assert sent > possible


def test_a_reading_that_came_late_accuses_nobody() -> None:
    """The counter may have been read just before the time was taken, or long before."""
    sender = Sender()
    for number in range(20):
        sender.send(0.1, late_s=0.05 if number % 2 else 0.0)
    assert sender.found() == []


def test_a_rate_that_the_run_itself_raised_counts_from_where_it_may_have_been_in_force() -> None:
    sender = Sender()
    sender.send(0.1).send(0.1)
    sender.rate_bps = 2 * RATE_BPS
    sender.send(0.1, 2).send(0.1, 2)
    sender.rate_bps = RATE_BPS
    sender.send(0.1, 1.5).send(0.1)
    assert sender.found() == []


def test_a_rate_that_came_and_went_between_two_samples_was_in_force() -> None:
    """The samples of a trace with steps of half their interval see every other step only."""
    sender = Sender().send(0.1).send(0.1, 5.5).send(0.1)
    assert len(sender.found()) == 1

    def found(at_s: float, node: str = KEY[1]) -> int:
        row = {"at_s": at_s, "link": KEY[0], "node": node, "to": "s0", "setting": "rate", "before": "", "after": ""}
        rows = [row | {"rate_bps": 10 * RATE_BPS, "source": "trace"}, row | {"at_s": 0.17, "rate_bps": RATE_BPS}]
        changes = pl.DataFrame(rows, schema=CHANGE_SCHEMA)
        return len(overspeeds(pl.DataFrame(sender.rows), changes, BURSTS, GRANULE))

    assert found(0.12) == found(0.2) == 0
    assert found(0.12, "s0") == 1, "it was the other direction's"
    assert found(0.29) == 1, "it came after what was sent"


def test_unshaped_links_have_no_rate_to_exceed() -> None:
    assert Sender(rate_bps=UNSHAPED_BPS).send(0.1, 50).found() == []
    assert overspeeds(pl.DataFrame(Sender().send(0.1, 50).rows), NO_CHANGES, {}, GRANULE) == []


@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(0, 1), st.floats(0, 0.2)), min_size=1, max_size=30))
def test_whoever_keeps_to_the_rate_is_never_accused(steps: list[tuple[float, float, float]]) -> None:
    sender = Sender()
    for for_s, share, late_s in steps:
        sender.send(for_s, share, late_s=min(late_s, for_s / 2))
    assert sender.found() == []


def test_a_healthy_run_is_possible(record: Callable[..., Record]) -> None:
    assert impossible(record().summary, at_once_s=0.0) == []


def test_an_all_reduce_below_its_bound_and_a_factor_over_one_are_not(
    record: Callable[..., Record],
) -> None:
    summary = record().summary
    assert summary.allreduce is not None
    fast = summary.allreduce.model_copy(update={"span_s": 0.9 * summary.allreduce.schedule_bound_s})
    reported = impossible(
        summary.model_copy(
            update={
                "allreduce": fast,
                "scaling_factor": 1.27,
                "network_efficiency": 1.06,
                "changes": [],
                "synchronisation": None,
            }
        ),
        at_once_s=0.0,
    )
    assert [text.split(",")[0] for text in reported] == [
        reported[0].split(",")[0],
        "a scaling factor of 1.27: iterations without communication took longer than those with it",
        "a network efficiency of 1.06: iterations without communication took longer than those with it",
    ]
    assert reported[0].startswith("an all-reduce took ")


def test_what_bursts_let_pass_early_is_no_miracle(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert summary.allreduce is not None
    bound_s = summary.allreduce.schedule_bound_s
    early = summary.model_copy(
        update={"allreduce": summary.allreduce.model_copy(update={"span_s": 0.8 * bound_s}), "changes": []}
    )
    assert impossible(early, at_once_s=0.0)
    assert impossible(early, at_once_s=0.2 * bound_s) == []


def test_workers_that_begin_one_after_the_other_may_each_take_less_than_the_bytes_need(
    record: Callable[..., Record],
) -> None:
    """Seen: a ring over an oversubscribed trunk whose workers began 72 ms apart, again and again. The trunk was at work
    for 515 ms, which its bytes need; no worker waited for more than 441."""
    summary = record().summary
    assert summary.allreduce is not None
    bound_s = summary.allreduce.schedule_bound_s

    def took(time_s: float, span_s: float | None) -> Results:
        allreduce = summary.allreduce and summary.allreduce.model_copy(update={"time_s": time_s, "span_s": span_s})
        return summary.model_copy(update={"allreduce": allreduce, "changes": [], "synchronisation": None})

    staggered = took(0.86 * bound_s, bound_s)
    assert impossible(staggered, at_once_s=0.0) == []
    why = out_of_step(staggered, at_once_s=0.0)
    assert why is not None
    assert why.startswith("workers begin an all-reduce at different times")
    assert out_of_step(staggered, at_once_s=0.2 * bound_s) is None, "bursts explain it"
    assert out_of_step(took(bound_s, bound_s), at_once_s=0.0) is None
