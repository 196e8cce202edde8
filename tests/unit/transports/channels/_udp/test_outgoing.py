"""What is under way, lost, acknowledged, in any order; on a network it is in tests/simulation/test_udp.py."""

from hypothesis import given
from hypothesis import strategies as st

from transports.channels._udp.outgoing import FEW_PACKETS, Outgoing, Run
from transports.channels.framing import HEADER_BYTES

PACKET_BYTES = 100


def posted(num_bytes: int, token: int | None = 1) -> tuple[Outgoing, list[int]]:
    """A stream with one message of so many bytes, its header included."""
    completions: list[int] = []
    outgoing = Outgoing(PACKET_BYTES, completions)
    outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(num_bytes - HEADER_BYTES)), token)
    return outgoing, completions


def take(outgoing: Outgoing, max_packets: int, now_s: float = 0.0) -> Run:
    wanted = outgoing.wanted()
    assert wanted is not None
    return outgoing.take(wanted, max_packets, now_s, room=1000, after_rest=False)


def test_packets_are_taken_in_order_and_the_last_one_is_short() -> None:
    outgoing, _ = posted(350)
    first, second = take(outgoing, 3), take(outgoing, 3)
    assert (first.first, first.num_packets, first.offset, first.num_bytes) == (0, 3, 0, 300)
    assert (second.first, second.num_packets, second.offset, second.num_bytes) == (3, 1, 300, 50)
    assert outgoing.num_under_way == 4
    assert outgoing.wanted() is None


def test_a_few_packets_after_a_rest_say_nothing_of_the_network() -> None:
    """Two packets for each message, now and then: the first leaves more behind it, and yet nobody was held back."""
    outgoing, _ = posted(FEW_PACKETS * 100 + 150)
    runs = [take(outgoing, each) for each in (FEW_PACKETS - 1, 1, 1, 1)]
    assert [run.saturated for run in runs] == [False, True, True, False]  # nothing is left behind the last
    outgoing.on_acknowledged([(0, outgoing.next_number - 1)], outgoing.next_number - 1)
    outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(150)), 2)
    assert not take(outgoing, 1).saturated


def test_what_three_later_packets_overtook_is_lost_and_travels_again_under_a_new_number() -> None:
    outgoing, completions = posted(1000)
    take(outgoing, 10)
    outgoing.on_acknowledged([(4, 9), (0, 2)], 9)
    assert outgoing.detect_loss(1.0, 0.5)
    again = take(outgoing, 10)
    assert (again.first, again.num_packets, again.offset) == (10, 1, 300)
    assert outgoing.retransmitted_bytes == 100
    assert completions == []
    outgoing.on_acknowledged([(10, 10)], 10)
    assert completions == [1]
    assert outgoing.delivered
    assert not outgoing.unfinished


def test_what_only_two_overtook_is_lost_after_a_while() -> None:
    outgoing, _ = posted(400)
    take(outgoing, 4)
    outgoing.on_acknowledged([(2, 3)], 3)
    assert outgoing.detect_loss(1.0, 0.5)  # the first: three have come after it, counted from the largest
    assert outgoing.loss_s == 1.0
    assert outgoing.detect_loss(1.0, 1.0)
    assert outgoing.loss_s is None
    assert outgoing.num_under_way == 0


def test_an_acknowledgement_that_was_overtaken_changes_nothing() -> None:
    outgoing, _ = posted(1000)
    take(outgoing, 10)
    taken = outgoing.on_acknowledged([(5, 9)], 9)
    assert taken is not None
    assert (taken.num_packets, taken.holds_largest) == (5, True)
    assert outgoing.on_acknowledged([(5, 6)], 6) is None
    assert outgoing.detect_loss(1.0, 0.5)
    assert outgoing.num_under_way == 0  # judged by the largest that was ever acknowledged


def test_the_oldest_is_repeated_unless_it_has_arrived_in_another_copy() -> None:
    outgoing, _ = posted(300)
    take(outgoing, 1)
    take(outgoing, 2)
    assert outgoing.repeat_oldest(2)
    copy = take(outgoing, 2)
    assert (copy.first, copy.offset, copy.num_bytes) == (3, 0, 100)
    outgoing.on_acknowledged([(3, 3)], 3)
    assert outgoing.repeat_oldest(2)
    assert take(outgoing, 2).offset == 100
    outgoing.on_acknowledged([(4, 5)], 5)
    assert outgoing.delivered
    assert not outgoing.repeat_oldest(2)
    assert outgoing.num_under_way == 0


def test_giving_up_keeps_what_has_no_token() -> None:
    outgoing, completions = posted(200, token=None)
    outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(1000)), 7)
    take(outgoing, 1)
    assert outgoing.give_up() == 200
    assert outgoing.num_under_way == 1
    assert take(outgoing, 10).num_bytes == 100
    outgoing.on_acknowledged([(0, 1)], 1)
    assert outgoing.delivered
    assert completions == []


def test_the_peer_says_how_far_it_may_go() -> None:
    outgoing, _ = posted(1000)
    outgoing.limit = 250
    assert take(outgoing, 10).num_bytes == 200  # whole packets only
    assert outgoing.wanted() is None
    outgoing.limit = 1000
    assert take(outgoing, 10).offset == 200


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data())
def test_every_byte_arrives_whatever_is_acknowledged_when(sizes: list[int], data: st.DataObject) -> None:
    """Runs of any length, acknowledgements of any of their packets in any order, losses between them."""
    num_bytes = HEADER_BYTES + sum(sizes) * PACKET_BYTES - 30
    outgoing, completions = posted(num_bytes)
    now_s = 0.0
    for _ in range(1000):
        if outgoing.delivered:
            break
        now_s += 1.0
        while outgoing.wanted() is not None:
            take(outgoing, data.draw(st.sampled_from(sizes)), now_s)
        largest = outgoing.next_number - 1
        first = data.draw(st.integers(max(0, largest - 5), largest))
        outgoing.on_acknowledged([(first, largest)], largest)
        outgoing.detect_loss(0.5, now_s + data.draw(st.sampled_from([0.0, 1.0])))
        if outgoing.wanted() is None:
            outgoing.repeat_oldest(2)
    assert outgoing.delivered
    assert completions == [1]
    assert outgoing.delivered_bytes == outgoing.payload_bytes == num_bytes
    assert outgoing.num_under_way >= 0
