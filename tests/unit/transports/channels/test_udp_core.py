"""Sets of ranges; whole connections are in tests/simulation/test_udp.py."""

from hypothesis import given
from hypothesis import strategies as st

from switch_agg.window import FixedWindow
from transports.channels._udp_core import Connection, Ranges
from transports.channels._udp_pacing import Pacer, WindowPace
from transports.framing import HEADER_BYTES

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30)


@given(pairs, st.integers(0, 60), st.integers(1, 20))
def test_ranges_are_a_set_of_integers(pieces: list[tuple[int, int]], start: int, length: int) -> None:
    ranges, numbers = Ranges(), set[int]()
    for begin, size in pieces:
        new = set(range(begin, begin + size)) - numbers
        numbers |= new
        assert ranges.add(begin, begin + size) == len(new)
    assert {number for pair in zip(ranges.starts, ranges.ends, strict=True) for number in range(*pair)} == numbers
    assert ranges.starts == sorted(ranges.starts)
    assert all(end < following for end, following in zip(ranges.ends, ranges.starts[1:], strict=False))
    assert ranges.covers(start, start + length) == (set(range(start, start + length)) <= numbers)
    assert ranges.prefix == next(number for number in range(100) if number not in numbers)


def test_the_largest_are_kept() -> None:
    ranges = Ranges()
    for number in range(0, 20, 2):
        ranges.add(number, number + 1)
    ranges.keep_last(2)
    assert (ranges.starts, ranges.ends) == ([16, 18], [17, 19])


def test_what_the_machine_did_not_take_of_a_run_is_sent_again() -> None:
    sender = Connection(
        peer=("127.0.0.1", 0),
        local=1,
        remote=2,
        packet_bytes=100,
        window=FixedWindow(1000),
        pace=WindowPace(),
        pacer=Pacer(),
        now_s=0.0,
    )
    sender.send(bytes(HEADER_BYTES), memoryview(bytes(950 - HEADER_BYTES)), 1)
    run = sender.next_run(0.0)
    assert run is not None
    assert (run.num_packets, run.num_bytes) == (10, 950)
    sender.take_back(run, 4, 0.0)
    assert sender.next_run(0.0) is None
    again = sender.next_run(1.0)
    assert again is not None
    assert (again.first, again.num_packets, again.offset, again.num_bytes) == (10, 6, 400, 550)
    assert sender.retransmitted_bytes == 0
