"""What is under way, lost, acknowledged, in any order; on a network it is in tests/simulation/test_udp.py."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from transports.channels._udp import native
from transports.channels._udp.native import Completions, Piece, Run, Taken, library
from transports.channels.framing import HEADER_BYTES

PACKET_BYTES = 100
FEW_PACKETS = 16


class Outgoing:
    def __init__(self) -> None:
        self.completions = Completions()
        self.state = native.Outgoing()
        library().outgoing_begin(ctypes.byref(self.state), PACKET_BYTES, self.completions.address)

    def __del__(self) -> None:
        library().outgoing_free(ctypes.byref(self.state))

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(library(), f"outgoing_{name}")(ctypes.byref(self.state), *arguments)

    def post(self, num_bytes: int, token: int | None) -> None:
        """A message of so many bytes, its header included."""
        view = memoryview(bytes(num_bytes - HEADER_BYTES))
        number = native.NO_TOKEN if token is None else token
        if token is not None:
            self.completions.hold(token, view)
        self._call("post", bytes(HEADER_BYTES), native.address_of(view), len(view), number)

    def wanted(self) -> Piece | None:
        piece = Piece()
        return piece if self._call("wanted", ctypes.byref(piece)) else None

    def take(self, max_packets: int, now_s: float = 0.0) -> Run:
        wanted = self.wanted()
        assert wanted is not None
        run = self._call("take", wanted, max_packets, now_s, 1000, 0)
        assert isinstance(run, Run)
        return run

    def on_acknowledged(self, ranges: Sequence[tuple[int, int]], largest: int) -> Taken:
        rising = (native.Named * len(ranges))(*sorted(ranges))
        taken = self._call("on_acknowledged", rising, len(ranges), largest)
        assert isinstance(taken, Taken)
        return taken

    def on_received(self, prefix: int) -> None:
        self._call("on_received", prefix)

    def detect_loss(self, patience_s: float, now_s: float) -> bool:
        return bool(self._call("detect_loss", patience_s, now_s))

    def repeat_oldest(self, num_packets: int) -> bool:
        return bool(self._call("repeat_oldest", num_packets))

    def give_up(self) -> int:
        return int(self._call("give_up"))

    @property
    def delivered(self) -> bool:
        return bool(self._call("delivered"))

    @property
    def unfinished(self) -> bool:
        return bool(self._call("unfinished"))


def posted(num_bytes: int, token: int | None = 1) -> Outgoing:
    outgoing = Outgoing()
    outgoing.post(num_bytes, token)
    return outgoing


def test_packets_are_taken_in_order_and_the_last_one_is_short() -> None:
    outgoing = posted(350)
    first, second = outgoing.take(3), outgoing.take(3)
    assert (first.first, first.num_packets, first.offset, first.num_bytes) == (0, 3, 0, 300)
    assert (second.first, second.num_packets, second.offset, second.num_bytes) == (3, 1, 300, 50)
    assert outgoing.state.num_under_way == 4
    assert outgoing.wanted() is None


def test_a_few_packets_after_a_rest_say_nothing_of_the_network() -> None:
    """Two packets for each message, now and then: the first leaves more behind it, and yet nobody was held back."""
    outgoing = posted(FEW_PACKETS * 100 + 150)
    runs = [outgoing.take(each) for each in (FEW_PACKETS - 1, 1, 1, 1)]
    assert [run.saturated for run in runs] == [0, 1, 1, 0]  # nothing is left behind the last
    outgoing.on_acknowledged([(0, outgoing.state.next_number - 1)], outgoing.state.next_number - 1)
    outgoing.post(HEADER_BYTES + 150, 2)
    assert not outgoing.take(1).saturated


def test_what_three_later_packets_overtook_is_lost_and_travels_again_under_a_new_number() -> None:
    outgoing = posted(1000)
    outgoing.take(10)
    outgoing.on_acknowledged([(4, 9), (0, 2)], 9)
    assert outgoing.detect_loss(1.0, 0.5)
    again = outgoing.take(10)
    assert (again.first, again.num_packets, again.offset) == (10, 1, 300)
    assert outgoing.state.retransmitted_bytes == 100
    assert outgoing.completions.take() == []
    outgoing.on_acknowledged([(10, 10)], 10)
    assert outgoing.completions.take() == [1]
    assert outgoing.delivered
    assert not outgoing.unfinished


def test_what_only_two_overtook_is_lost_after_a_while() -> None:
    outgoing = posted(400)
    outgoing.take(4)
    outgoing.on_acknowledged([(2, 3)], 3)
    assert outgoing.detect_loss(1.0, 0.5)  # the first: three have come after it, counted from the largest
    assert outgoing.state.loss_s == 1.0
    assert outgoing.detect_loss(1.0, 1.0)
    assert outgoing.state.loss_s == math.inf
    assert outgoing.state.num_under_way == 0


def test_an_acknowledgement_that_was_overtaken_changes_nothing() -> None:
    outgoing = posted(1000)
    outgoing.take(10)
    taken = outgoing.on_acknowledged([(5, 9)], 9)
    assert (taken.num_packets, taken.holds_largest) == (5, 1)
    assert outgoing.on_acknowledged([(5, 6)], 6).num_packets == 0
    assert outgoing.detect_loss(1.0, 0.5)
    assert outgoing.state.num_under_way == 0  # judged by the largest that was ever acknowledged


def test_the_oldest_is_repeated_unless_it_has_arrived_in_another_copy() -> None:
    outgoing = posted(300)
    outgoing.take(1)
    outgoing.take(2)
    assert outgoing.repeat_oldest(2)
    copy = outgoing.take(2)
    assert (copy.first, copy.offset, copy.num_bytes) == (3, 0, 100)
    outgoing.on_acknowledged([(3, 3)], 3)
    assert outgoing.repeat_oldest(2)
    assert outgoing.take(2).offset == 100
    outgoing.on_acknowledged([(4, 5)], 5)
    assert outgoing.delivered
    assert not outgoing.repeat_oldest(2)
    assert outgoing.state.num_under_way == 0


def test_what_has_come_under_whichever_numbers_is_neither_under_way_nor_sent_again() -> None:
    outgoing = posted(300)
    outgoing.post(1000, 2)
    for num_packets in (3, 6, 4):
        outgoing.take(num_packets)
    outgoing.on_received(0)
    assert outgoing.state.num_under_way == 13
    assert outgoing.completions.take() == []
    outgoing.on_received(750)
    assert outgoing.state.num_under_way == 6  # the rest of the packet that has come in part counts, and four
    assert outgoing.completions.take() == [1]
    assert outgoing.repeat_oldest(1)
    assert outgoing.take(1).offset == 700
    outgoing.on_received(1300)
    assert outgoing.completions.take() == [2]
    assert outgoing.delivered
    assert not outgoing.unfinished
    assert outgoing.state.delivered_bytes == 1300
    outgoing.on_acknowledged([(0, 13)], 13)
    assert outgoing.state.num_under_way == 0
    assert outgoing.state.delivered_bytes == 1300


def test_what_was_lost_and_has_come_after_all_is_not_sent_again() -> None:
    outgoing = posted(1000)
    outgoing.take(10)
    outgoing.on_acknowledged([(6, 9)], 9)
    assert outgoing.detect_loss(1.0, 2.0)
    outgoing.on_received(300)
    assert outgoing.wanted().offset == 0  # some of it has come, and not all
    outgoing.on_received(1000)
    assert outgoing.wanted() is None
    assert outgoing.completions.take() == [1]
    assert not outgoing.unfinished


def test_giving_up_keeps_what_has_no_token() -> None:
    outgoing = posted(200, token=None)
    outgoing.post(HEADER_BYTES + 1000, 7)
    outgoing.take(1)
    assert outgoing.give_up() == 200
    assert outgoing.state.num_under_way == 1
    assert outgoing.take(10).num_bytes == 100
    outgoing.on_acknowledged([(0, 1)], 1)
    assert outgoing.delivered
    assert outgoing.completions.take() == []


def test_the_peer_says_how_far_it_may_go() -> None:
    outgoing = posted(1000)
    outgoing.state.limit = 250
    assert outgoing.take(10).num_bytes == 200  # whole packets only
    assert outgoing.wanted() is None
    outgoing.state.limit = 1000
    assert outgoing.take(10).offset == 200


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data())
def test_every_byte_arrives_whatever_is_acknowledged_when(sizes: list[int], data: st.DataObject) -> None:
    """Runs of any length, acknowledgements of any of their packets in any order, losses between them."""
    num_bytes = HEADER_BYTES + sum(sizes) * PACKET_BYTES - 30
    outgoing = posted(num_bytes)
    now_s = 0.0
    for _ in range(1000):
        if outgoing.delivered:
            break
        now_s += 1.0
        while outgoing.wanted() is not None:
            outgoing.take(data.draw(st.sampled_from(sizes)), now_s)
        largest = outgoing.state.next_number - 1
        first = data.draw(st.integers(max(0, largest - 5), largest))
        outgoing.on_acknowledged([(first, largest)], largest)
        outgoing.detect_loss(0.5, now_s + data.draw(st.sampled_from([0.0, 1.0])))
        if outgoing.wanted() is None:
            outgoing.repeat_oldest(2)
    assert outgoing.delivered
    assert outgoing.completions.take() == [1]
    assert outgoing.state.delivered_bytes == outgoing.state.payload_bytes == num_bytes
    assert outgoing.state.num_under_way >= 0
