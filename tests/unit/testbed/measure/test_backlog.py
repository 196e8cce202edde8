"""Of any traffic: a probe is exact to a packet, and a gap is never held against the link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.backlog import BacklogProber, Reading, compare, gap_s

RATE_BPS = 100e6
KEY = ("w0-s0", "w0")


class Link:
    """A fluid link: what is put in leaves at the rate, slowed by `speed`."""

    def __init__(self, backlog_bytes: float, *, speed: float = 1.0) -> None:
        self.now_s, self.sent_bytes, self.backlog_bytes, self.speed = 10.0, 0.0, backlog_bytes, speed

    def sleep(self, time_s: float) -> None:
        moved = min(self.backlog_bytes, self.speed * RATE_BPS / 8 * time_s)
        self.sent_bytes += moved
        self.backlog_bytes -= moved
        self.now_s += time_s

    def read(self, _key: tuple[str, str]) -> Reading:
        return Reading(
            at_s=self.now_s,
            rate_bps=RATE_BPS,
            class_bytes=round(self.sent_bytes),
            backlog_bytes=round(self.backlog_bytes),
        )


def prober(granule_bytes: int = 1514) -> BacklogProber:
    return BacklogProber(granule_bytes=granule_bytes, limit_s=0.05)


@given(backlog_bytes=st.integers(20_000, 10_000_000))
def test_a_link_at_its_rate_sends_what_is_due_whatever_comes_after(backlog_bytes: int) -> None:
    link = Link(backlog_bytes)
    probe = prober().probe([KEY], link.read, link.sleep)
    assert probe is not None
    assert abs(probe.sent_bytes - probe.due_bytes) <= 1
    assert probe.elapsed_s <= 0.05 + 1e-9


def test_a_link_that_is_starved_shows() -> None:
    link = Link(1_000_000, speed=0.7)
    probe = prober().probe([KEY], link.read, link.sleep)
    assert probe is not None
    assert probe.sent_bytes / probe.due_bytes == pytest.approx(0.7)


def test_a_queue_that_holds_less_than_two_packets_says_nothing() -> None:
    assert prober(68_000).probe([KEY], Link(130_000).read) is None
    assert gap_s(Link(2_000_000).read(KEY), granule_bytes=68_000, limit_s=0.05) == 0.05


def test_a_late_second_reading_or_a_changed_rate_says_nothing() -> None:
    before = Reading(at_s=1.0, rate_bps=RATE_BPS, class_bytes=0, backlog_bytes=125_000)  # 10 ms
    on_time = Reading(at_s=1.009, rate_bps=RATE_BPS, class_bytes=100_000, backlog_bytes=0)
    late = Reading(at_s=1.010, rate_bps=RATE_BPS, class_bytes=100_000, backlog_bytes=0)
    changed = Reading(at_s=1.009, rate_bps=RATE_BPS / 2, class_bytes=100_000, backlog_bytes=0)
    assert compare(*KEY, before, on_time) is not None
    assert compare(*KEY, before, late) is None
    assert compare(*KEY, before, changed) is None


def test_directions_take_turns() -> None:
    links = {("a", "n"): Link(500_000), ("b", "n"): Link(500_000)}

    def sleep(time_s: float) -> None:
        for link in links.values():
            link.now_s += time_s

    taken = prober()
    found = [taken.probe(list(links), lambda key: links[key].read(key), sleep) for _ in range(4)]
    assert [probe.link for probe in found if probe] == ["a", "b", "a", "b"]
