"""Which steps wait for which."""

from transports.collectives.base import Chunk, Step
from transports.collectives.schedules.dependencies import dependencies


def send(start: int, count: int, peer: int = 1) -> Step:
    return Step("send", Chunk("output", start, count), peer)


def receive(start: int, count: int, peer: int = 2) -> Step:
    return Step("receive", Chunk("output", start, count), peer)


def reduce(start: int, count: int, peer: int = 2) -> Step:
    return Step("reduce", Chunk("output", start, count), peer)


def test_a_send_waits_for_the_reduce_that_makes_its_values() -> None:
    assert dependencies([reduce(0, 4), send(0, 4)]).successors == ((1,), ())


def test_a_send_waits_for_what_it_is_to_come_after() -> None:
    paced = send(4, 4)._replace(after=(Chunk("output", 0, 4), Chunk("output", 8, 4)))
    assert dependencies([receive(0, 4), receive(8, 4), paced]).successors == ((2,), (2,), ())
    assert dependencies([paced, receive(0, 4)]).num_predecessors == (0, 0)  # it does not read them


def test_a_receive_waits_for_the_send_whose_values_it_overwrites() -> None:
    assert dependencies([send(0, 4), receive(2, 4)]).successors == ((1,), ())


def test_a_reduce_waits_for_the_reduce_before_it() -> None:
    assert dependencies([reduce(0, 4), reduce(3, 1)]).num_predecessors == (0, 1)


def test_two_sends_of_one_chunk_do_not_wait_for_each_other() -> None:
    assert dependencies([send(0, 4), send(0, 4)]).num_predecessors == (0, 0)


def test_chunks_that_touch_do_not_overlap() -> None:
    assert dependencies([reduce(0, 4), send(4, 4)]).num_predecessors == (0, 0)


def test_a_chunk_waits_once_for_each_step_that_it_overlaps() -> None:
    order = dependencies([reduce(0, 2), reduce(2, 2), reduce(4, 2), send(1, 4)])
    assert order.num_predecessors[3] == 3


def test_equal_places_in_different_buffers_do_not_overlap() -> None:
    steps = [reduce(0, 4), Step("send", Chunk("input", 0, 4), 1)]
    assert dependencies(steps).num_predecessors == (0, 0)


def test_a_lane_keeps_the_order_of_its_messages() -> None:
    order = dependencies([send(0, 1), receive(1, 1), send(2, 1), reduce(3, 1), send(4, 1, peer=2)])
    assert order.lanes == {(1, "send"): (0, 2), (2, "receive"): (1, 3), (2, "send"): (4,)}


def test_empty_chunks_wait_for_nothing() -> None:
    assert dependencies([reduce(0, 4), send(2, 0)]).num_predecessors == (0, 0)
