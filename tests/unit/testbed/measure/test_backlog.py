"""Of any traffic: a probe is exact to a packet, and a gap is never held against the link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.backlog import BacklogProber, Reading, follows

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


@given(backlog_bytes=st.integers(700_000, 10_000_000))
def test_a_link_at_its_rate_sends_what_is_due_whatever_comes_after(backlog_bytes: int) -> None:
    link = Link(backlog_bytes)
    probe = prober().probe([KEY], link.read, link.sleep)
    assert probe is not None
    assert abs(probe.sent_bytes - probe.due_bytes) <= 2
    assert probe.elapsed_s <= 0.05 + 1e-9


def test_a_link_that_is_starved_shows() -> None:
    link = Link(1_000_000, speed=0.7)
    probe = prober().probe([KEY], link.read, link.sleep)
    assert probe is not None
    assert probe.sent_bytes / probe.due_bytes == pytest.approx(0.7, rel=1e-4)


def test_a_queue_that_is_refilled_is_followed_reading_by_reading() -> None:
    link = Link(70_000)

    def sleep(time_s: float) -> None:
        link.sleep(time_s)
        link.backlog_bytes = 70_000  # TCP keeps one super-frame in the queue

    probe = prober(68_000).probe([KEY], link.read, sleep)
    assert probe is not None
    assert 0.025 <= probe.elapsed_s <= 0.05
    assert probe.sent_bytes == pytest.approx(probe.due_bytes, abs=16)


def test_a_queue_that_drains_too_soon_says_nothing() -> None:
    link = Link(70_000)
    assert prober(68_000).probe([KEY], link.read, link.sleep) is None
    assert prober().probe([KEY], Link(0).read) is None


def test_a_rhythm_of_link_and_probes_gives_no_bias() -> None:
    """A super-frame leaves every 5.44 ms, and every ninth is in step with the samples."""
    granule = 68_000
    period_s = granule * 8 / RATE_BPS
    now_s, total = 0.0, 0.0

    def sleep(time_s: float) -> None:
        nonlocal now_s
        now_s += time_s

    def read(_key: tuple[str, str]) -> Reading:
        return Reading(
            at_s=now_s, rate_bps=RATE_BPS, class_bytes=granule * int(now_s / period_s), backlog_bytes=granule
        )

    taken, due = prober(granule), 0.0
    for tick in range(200):
        now_s = tick * 9 * period_s
        probe = taken.probe([KEY], read, sleep)
        assert probe is not None
        total, due = total + probe.sent_bytes, due + probe.due_bytes
    assert total == pytest.approx(due, rel=0.005)


def test_a_probe_that_failed_gives_the_next_one_no_bias() -> None:
    """Super-frames of a host leave every 13.1 ms; the port behind it drains each at the same rate, just in time."""
    granule, rate_bps = 82_000, 50e6
    period_s = granule * 8 / rate_bps
    host, port = ("h0-s0", "h0"), ("h1-s0", "s0")
    now_s, sent, due = 0.0, 0.0, 0.0

    def sleep(time_s: float) -> None:
        nonlocal now_s
        now_s += time_s

    def read(key: tuple[str, str]) -> Reading:
        num_sent, since_s = int(now_s / period_s), now_s % period_s
        port_bytes = max(0, granule - int(since_s * rate_bps / 8) - 100)
        return Reading(
            at_s=now_s,
            rate_bps=rate_bps,
            class_bytes=granule * num_sent if key == host else granule * num_sent - port_bytes,
            backlog_bytes=7 * granule if key == host else port_bytes,
        )

    taken, num_probes = prober(65_000), 0
    for tick in range(400):
        now_s = max(now_s, tick * 0.1)
        probe = taken.probe([port, host], read, sleep)
        if probe is not None and probe.node == "h0":
            sent, due, num_probes = sent + probe.sent_bytes, due + probe.due_bytes, num_probes + 1
    assert num_probes >= 100
    assert sent == pytest.approx(due, rel=0.025), "three standard deviations of chance; 18 % without a wait of its own"


@pytest.mark.parametrize("acknowledgement_bytes", [0, 66])
@pytest.mark.parametrize(("waits", "says_something"), [(0.45, False), (0.6, False), (0.8, False), (1.0, True)])
def test_a_queue_that_was_empty_when_a_chain_ended_gives_no_bias(
    *, waits: float, says_something: bool, acknowledgement_bytes: int
) -> None:
    """A port whose super-frames come at its rate and wait for a part of their time: chains that begin while one waits
    and end when none does, or just an acknowledgement behind it, have seen one too many."""
    granule, rate_bps = 68_000, 250e6
    period_s = granule * 8 / rate_bps
    now_s, sent, due, num_probes = 0.0, 0.0, 0.0, 0

    def sleep(time_s: float) -> None:
        nonlocal now_s
        now_s += time_s + 60e-6

    def read(_key: tuple[str, str]) -> Reading:
        waiting = now_s % period_s / period_s >= 1 - waits
        return Reading(
            at_s=now_s,
            rate_bps=rate_bps,
            class_bytes=granule * int(now_s / period_s),
            backlog_bytes=granule * waiting + acknowledgement_bytes,
        )

    taken = prober(65_536)
    for tick in range(2000):
        now_s = tick * 0.1
        if (probe := taken.probe([KEY], read, sleep)) is not None:
            sent, due, num_probes = sent + probe.sent_bytes, due + probe.due_bytes, num_probes + 1
    assert (num_probes >= 20) == says_something
    assert sent == pytest.approx(due, rel=0.03)


@given(speed=st.floats(1.3, 3.0), num_granules=st.integers(6, 40))
def test_a_link_that_is_too_fast_shows_though_its_queue_is_empty_too_soon(speed: float, num_granules: int) -> None:
    link, readings = Link(0.0, speed=speed), list[Reading]()

    def read(key: tuple[str, str]) -> Reading:
        if not readings:
            link.backlog_bytes = 68_000 * num_granules
        readings.append(link.read(key))
        return readings[-1]

    probe = prober(65_536).probe([KEY], read, link.sleep)
    assert probe is not None
    assert probe.sent_bytes > 1.1 * probe.due_bytes


def test_a_late_reading_or_a_changed_rate_ends_the_chain() -> None:
    before = Reading(at_s=1.0, rate_bps=RATE_BPS, class_bytes=0, backlog_bytes=125_000)  # 10 ms
    on_time = Reading(at_s=1.009, rate_bps=RATE_BPS, class_bytes=100_000, backlog_bytes=0)
    late = Reading(at_s=1.010, rate_bps=RATE_BPS, class_bytes=100_000, backlog_bytes=0)
    changed = Reading(at_s=1.009, rate_bps=RATE_BPS / 2, class_bytes=100_000, backlog_bytes=0)
    assert follows(before, on_time)
    assert not follows(before, late)
    assert not follows(before, changed)


def test_directions_take_turns() -> None:
    links = {("a", "n"): Link(500_000), ("b", "n"): Link(500_000)}

    def sleep(time_s: float) -> None:
        for link in links.values():
            link.sleep(time_s)
            link.backlog_bytes = 500_000

    taken = prober()
    found = [taken.probe(list(links), lambda key: links[key].read(key), sleep) for _ in range(4)]
    assert [probe.link for probe in found if probe] == ["a", "b", "a", "b"]
