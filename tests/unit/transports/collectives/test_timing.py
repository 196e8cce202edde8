"""The cost model on cases that are computed without it: token buckets, super-frames, shared links, cores, windows."""

from dataclasses import replace
from math import inf

import pytest

from transports.collectives.base import COLLECTIVES, Operation, World
from transports.collectives.costs import FREE, Costs
from transports.collectives.timing import (
    IDLE_S,
    PACKET_BYTES,
    Connection,
    Connections,
    Exchanged,
    Links,
    exchange_s,
    exchanged,
)

SHAPED = Links(
    s_per_byte=(1e-6,) * 4,
    paths=lambda pair: (pair[0], 2 + pair[1]),
    latency_s=lambda _: 0.0,
    burst_bytes=(1000.0,) * 4,
)
FRAMED = replace(SHAPED, burst_bytes=(), frame_bytes=(400,) * 4)


def there_and_back_s(num_bytes: int, links: Links, costs: Costs = FREE, *, quiet_s: float = 0.0) -> float:
    """To worker 0 and then back to worker 1, each direction over two links, in one message each way."""
    tree = COLLECTIVES.parse("tree")
    return exchange_s(tree, "all_reduce", World(num_workers=2), num_bytes, 1, links, costs, quiet_s=quiet_s)


def test_what_a_token_bucket_holds_passes_at_once_after_rest_and_nothing_else_is_faster() -> None:
    """Links on the way back rest until the first message has come."""
    without = replace(SHAPED, burst_bytes=())
    assert there_and_back_s(900, without) == pytest.approx(1800e-6)
    assert there_and_back_s(900, SHAPED) == pytest.approx(900e-6), "back in the burst"
    assert there_and_back_s(1600, SHAPED) == pytest.approx(3200e-6 - 1000e-6), "once, however many links"


def test_bursts_fill_while_nothing_is_sent() -> None:
    assert there_and_back_s(900, SHAPED, quiet_s=500e-6) == pytest.approx(400e-6)
    assert there_and_back_s(900, SHAPED, quiet_s=IDLE_S) == 0.0
    assert there_and_back_s(1600, SHAPED, quiet_s=IDLE_S) == pytest.approx(1200e-6)


def test_idle_times_differ_by_what_they_change() -> None:
    assert SHAPED.quiet_class_s(inf) == SHAPED.quiet_class_s(2 * IDLE_S) == inf
    assert SHAPED.quiet_class_s(1000e-6) == SHAPED.quiet_class_s(IDLE_S) == IDLE_S
    assert SHAPED.quiet_class_s(999e-6) == 999e-6
    assert FRAMED.quiet_class_s(0.0) == IDLE_S, "no bursts that could fill"


def test_the_last_superframe_of_a_message_passes_whole() -> None:
    """As soon as the bucket is not in debt: a message of one takes no time, and what follows it waits."""
    assert there_and_back_s(400, FRAMED) == 0.0
    assert there_and_back_s(401, FRAMED) == pytest.approx(2 * 400e-6)
    assert there_and_back_s(1600, FRAMED) == pytest.approx(2 * 1200e-6)
    both = replace(FRAMED, burst_bytes=(300.0,) * 4)
    assert there_and_back_s(1600, both, quiet_s=IDLE_S) == pytest.approx(2 * 900e-6)


def test_what_waits_for_a_shaper_is_once_as_late_as_its_timer() -> None:
    """On the first link; the second one has got tokens by then. Neither is a message late that need not wait, nor one
    on a link that has no shaper."""
    late, shaped = replace(FREE, shaper_late_s=50e-6), replace(FRAMED, burst_bytes=(100.0,) * 4)
    assert there_and_back_s(1600, shaped, late) == pytest.approx(1200e-6 + 50e-6 + 1100e-6 + 50e-6)
    assert there_and_back_s(400, shaped, late) == 0.0
    assert there_and_back_s(1600, FRAMED, late) == there_and_back_s(1600, FRAMED)


def test_what_follows_a_late_message_makes_up_for_it() -> None:
    """Sixteen pieces of two connections on one link: each message's end is late, and the link is none the slower."""
    links = Links(
        s_per_byte=(1e-6,) * 6,
        paths=lambda pair: (pair[0], 3 + pair[1]),
        latency_s=lambda _: 0.0,
        burst_bytes=(100.0,) * 6,
        frame_bytes=(100,) * 6,
    )
    ring, world = COLLECTIVES.parse("ring"), World(num_workers=3)
    free, late = (
        exchanged(ring, "scatter", world, 24_000, 1, links, replace(FREE, shaper_late_s=late_s)).ends_s
        for late_s in (0.0, 50e-6)
    )
    assert late[1:] == pytest.approx([end_s + 50e-6 for end_s in free[1:]])


def test_messages_that_are_handed_over_together_are_cut_as_one() -> None:
    """Two workers' ring of four messages each: the first two go together, in super-frames of 50,000; the others one by
    one, when what they wait for has come. All of 40,000 bytes and a header."""
    links = replace(FRAMED, frame_bytes=(50_000,) * 4, header_bytes=40)
    taken_s = exchange_s(
        COLLECTIVES.parse("ring"), "all_reduce", World(num_workers=2), 160_000, 1, links, FREE, quiet_s=0.0
    )
    # Second message: at 50,000, in the second super-frame. The first one's answer waits for all 80,080 to have passed,
    # the second one's, which has a super-frame of its own, for 40,040 more.
    assert taken_s == pytest.approx((80_080 + 40_040) * 1e-6)


def test_what_is_the_last_and_hardly_longer_than_a_superframe_leaves_in_even_pieces() -> None:
    """A tree's two messages of 32 KiB, ready together, over links that take 60,000 bytes at once: the second follows
    when the first has been paid for, and on the way back both find a link that was idle. Measured at 500 Mbit/s and
    59,368 bytes, 64 KiB in both directions: 0.47 ms, where one super-frame and a rest would have taken 1.06 ms."""
    links = replace(FRAMED, frame_bytes=(60_000,) * 4, s_per_byte=(1e-8,) * 4)
    assert there_and_back_s(65_536, links) == pytest.approx(32_768e-8)


def test_connections_take_turns_on_a_link_that_they_share() -> None:
    """Of 8,000 bytes to each of two peers an eighth goes to the one, then an eighth to the other."""
    links = Links(
        s_per_byte=(1e-6,) * 6,
        paths=lambda pair: (pair[0], 3 + pair[1]),
        latency_s=lambda _: 0.0,
        frame_bytes=(100,) * 6,
    )
    ring, world = COLLECTIVES.parse("ring"), World(num_workers=3)
    ends_s = exchanged(ring, "scatter", world, 24_000, 1, links, FREE, quiet_s=0.0).ends_s
    assert ends_s[1:] == pytest.approx([14_900e-6, 15_900e-6])
    whole = replace(links, frame_bytes=())
    assert exchanged(ring, "scatter", world, 24_000, 1, whole, FREE).ends_s[1:] == pytest.approx([8e-3, 16e-3])


def test_a_message_of_nothing_takes_no_time() -> None:
    assert there_and_back_s(0, FRAMED) == there_and_back_s(0, SHAPED) == 0.0


def test_bytes_are_worked_on_as_they_come() -> None:
    """A message of four super-frames, over links that are slower than copying: one super-frame's copy is waited for
    where it is sent and where it is received, and all of it where nothing is cut."""
    costs = replace(FREE, copy_s_per_byte=0.1e-6, message_s=5e-6)
    assert there_and_back_s(1600, FRAMED, costs) == pytest.approx(2 * (1200e-6 + 2 * 45e-6))
    whole = replace(SHAPED, burst_bytes=())
    assert there_and_back_s(1600, whole, costs) == pytest.approx(2 * (1600e-6 + 2 * 165e-6))


def test_a_short_last_superframe_is_worked_on_for_its_own_length() -> None:
    """400, 400 and 200 bytes: the last is copied in half the time of the others, which are done by then; if copying is
    hardly faster than links, the one before it is not."""
    costs = replace(FREE, copy_s_per_byte=0.1e-6, message_s=5e-6)
    assert there_and_back_s(1000, FRAMED, costs) == pytest.approx(2 * (45e-6 + 800e-6 + 25e-6))
    slow = replace(costs, copy_s_per_byte=0.9e-6)
    behind_s = 360e-6 - 200e-6
    assert there_and_back_s(1000, FRAMED, slow) == pytest.approx(2 * (365e-6 + 800e-6 + behind_s + 185e-6))


def test_copying_that_is_slower_than_links_decides() -> None:
    """Receiving begins with the first super-frame and lasts 10 us a byte."""
    costs = replace(FREE, copy_s_per_byte=10e-6)
    assert there_and_back_s(1600, FRAMED, costs) >= 2 * 16_000e-6


def test_participants_of_one_machine_share_its_cores() -> None:
    """Everybody's barrier of one round: two messages each, sent and received."""
    links = Links.star(2, rate_bps=1e15, latency_s=0.0)
    costs = replace(FREE, message_s=1e-3)

    def ring_s(num_cores: int | None) -> float:
        shared = replace(costs, num_cores=num_cores)
        return exchange_s(COLLECTIVES.parse("ring"), "all_reduce", World(num_workers=2), 2, 1, links, shared)

    assert ring_s(None) == ring_s(2) == pytest.approx(4e-3)
    assert ring_s(1) == pytest.approx(8e-3)


FAR = Links.star(2, rate_bps=8e8, latency_s=20e-3, frame_bytes=PACKET_BYTES)
"""A round trip of 40 ms, in which 4 MB leave."""
TCP = replace(FREE, tcp=True)


def far(num_segments: int, quiet_s: float = inf, connections: Connections | None = None) -> Exchanged:
    """One message each way, at once."""
    doubling, world = COLLECTIVES.parse("recursive_doubling"), World(num_workers=2)
    num_bytes = num_segments * PACKET_BYTES
    return exchanged(doubling, "all_reduce", world, num_bytes, 1, FAR, TCP, quiet_s=quiet_s, connections=connections)


def test_a_connection_that_was_idle_begins_with_ten_segments_and_doubles_them_every_round_trip() -> None:
    for num_segments, num_round_trips in ((10, 0), (11, 1), (30, 1), (31, 2), (70, 2), (71, 3), (150, 3), (151, 4)):
        assert far(num_segments).end_s == pytest.approx(0.02 + 0.04 * num_round_trips, abs=3e-3), num_segments
    assert far(150, IDLE_S).end_s == pytest.approx(0.02, abs=3e-3), "as much as it wants"


def test_what_an_exchange_leaves_of_a_window_the_next_one_finds() -> None:
    """Unless a connection has not filled its window, or has been idle for too long: Linux halves it for
    every timeout of retransmissions, 0.24 s here."""
    first = far(46)
    assert first.end_s == pytest.approx(0.1, abs=2e-3), "10, 20, 16"
    assert first.connections is not None
    windows = {each.window_bytes for _, each in first.connections}
    assert len(windows) == 1, "in both directions alike"
    assert 46 * PACKET_BYTES < min(windows) <= 56 * PACKET_BYTES, "10 and what was acknowledged"
    assert far(46, 0.1, first.connections).end_s == pytest.approx(0.02, abs=2e-3)
    assert far(46, 0.22, first.connections).end_s == pytest.approx(0.06, abs=2e-3), "half of that, and the others"
    assert far(46, inf, first.connections).end_s == pytest.approx(first.end_s)
    little = far(5, 0.1, first.connections)
    assert little.connections is not None
    assert {each.window_bytes for _, each in little.connections} == windows


def test_a_window_that_fills_the_path_keeps_nothing_waiting() -> None:
    """What slow start costs is over after 8 round trips: 10 * 2 ** 8 segments are 3.7 MB."""
    costs_s = [far(each).end_s - far(each, IDLE_S).end_s for each in (7_000, 14_000)]
    assert costs_s[0] == pytest.approx(costs_s[1], rel=1e-3)
    assert 0.2 < costs_s[0] < 0.36
    near = replace(FAR, latency_s=lambda _: 50e-6)
    ring, world = COLLECTIVES.parse("ring"), World(num_workers=2)
    idle_s, busy_s = (
        exchange_s(ring, "broadcast", world, 1_000_000, 1, near, TCP, quiet_s=quiet_s) for quiet_s in (inf, 0.0)
    )
    assert idle_s == busy_s, "ten segments are more than the path holds"


def test_a_slow_way_to_a_link_leaves_the_rest_of_it_to_others() -> None:
    """Three workers send 750 bytes each over links that are together as fast as the receiver's."""
    slow = Links(
        s_per_byte=(3e-6, 3e-6, 3e-6, 3e-6, 1e-6, 1e-6, 1e-6, 1e-6),
        paths=lambda pair: (pair[0], 4 + pair[1]),
        latency_s=lambda _: 0.0,
    )
    taken_s = exchange_s(COLLECTIVES.parse("all_to_all"), "gather", World(num_workers=4), 3000, 1, slow, FREE)
    assert taken_s == pytest.approx(2.25e-3)


def test_a_link_counts_whoever_s_it_is() -> None:
    """Queues that overflow took the round trip from participant 0, twice one way."""

    def takes_s(number: int, up_s: float, down_s: float) -> float:
        star = replace(Links.star(8, rate_bps=1e9, latency_s=0.0), queue_bytes=1e5)

        def latency_s(pair: tuple[int, int]) -> float:
            return up_s * (pair[0] == number) + down_s * (pair[1] == number)

        return exchange_s(
            COLLECTIVES.parse("all_to_all"),
            "all_reduce",
            World(num_workers=8),
            25 * 10**6,
            1,
            replace(star, latency_s=latency_s),
        )

    assert takes_s(3, 0.04, 0.0) == pytest.approx(takes_s(0, 0.04, 0.0), rel=0.01)
    assert takes_s(3, 0.04, 0.0) == pytest.approx(takes_s(3, 0.02, 0.02), rel=0.15)


def test_acknowledgements_wait_with_what_is_queued_on_their_way() -> None:
    """The second of two workers has the slow link, whose queue is on the way to it: what it sends itself is
    acknowledged behind that. It takes a second for its million bytes where nothing waits."""

    def takes_s(queue_bytes: float, *, fast_s_per_byte: float = 0.2e-6, operation: Operation = "all_reduce") -> float:
        """The other one's window is open, its own is not."""
        links = Links(
            s_per_byte=(fast_s_per_byte, 1e-6, fast_s_per_byte, 1e-6),
            paths=lambda pair: (pair[0], 2 + pair[1]),
            latency_s=lambda _: 0.0,
            queue_bytes=queue_bytes,
            frame_bytes=(PACKET_BYTES,) * 4,
        )
        assert links.queues((0, 1)) == ([3] if fast_s_per_byte < 1e-6 else [])
        assert links.queues((1, 0)) == [], "it comes as slowly as it leaves"
        found = exchanged(
            COLLECTIVES.parse("recursive_doubling" if operation == "all_reduce" else "tree"),
            operation,
            World(num_workers=2),
            1_000_000,
            1,
            links,
            TCP,
            root=1,
            quiet_s=0.0,
            connections=frozenset({((0, 1), Connection(1e6, 0.0))}),
        )
        return found.end_s

    assert takes_s(500e3) > 1.9
    assert 1.1 < takes_s(100e3) < 1.3, "no more waits than there is room for"
    assert takes_s(20e3) == pytest.approx(1.0, abs=0.01)
    assert takes_s(500e3, fast_s_per_byte=1e-6) == pytest.approx(1.0, abs=0.01), "no queue"
    assert takes_s(500e3, operation="broadcast") == pytest.approx(1.0, abs=0.01), "one way alone"
