"""Point-to-point messages over every channel: matched by rank and tag, in any order, whatever collectives do."""

import threading
import time

import pytest
import torch

from tests.threads import run_communicators
from transports.channels.base import CHANNELS
from transports.errors import FrameMismatchError, PeerLostError
from transports.execution.communicator import Communicator
from transports.execution.point_to_point import EAGER_BYTES

KINDS: list[object] = [*CHANNELS.kinds(), {"kind": "tcp", "streams": 3}]
SIZES = (1, EAGER_BYTES // 4, EAGER_BYTES // 4 + 1, 300_000)
"""Elements, of four bytes: short messages, the longest that is sent unasked, and long ones."""


@pytest.mark.parametrize("channel", KINDS, ids=str)
def test_tags_come_in_any_order_and_any_length(channel: object) -> None:
    def body(communicator: Communicator) -> list[float]:
        peer = 1 - communicator.rank
        order = list(range(len(SIZES)))
        sent = [torch.full((SIZES[tag],), 10.0 * communicator.rank + tag) for tag in order]
        received = [torch.empty(size) for size in SIZES]
        works = [communicator.send(sent[tag], peer, tag) for tag in (order if communicator.rank else order[::-1])]
        works += [communicator.receive(received[tag], peer, tag) for tag in (3, 0, 2, 1)]
        for work in works:
            work.wait(20)
        assert all(float(each.min()) == float(each.max()) for each in received)
        return [float(each[0]) for each in received]

    assert run_communicators(body, 2, channel=channel) == [[10.0, 11.0, 12.0, 13.0], [0.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize("channel", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_messages_and_collectives_do_not_wait_for_each_other(channel: object, size: int) -> None:
    def body(communicator: Communicator) -> tuple[float, float]:
        total, sent = torch.ones(size), torch.full((size,), 7.0)
        if communicator.rank == 0:
            before = communicator.receive(torch.empty(size), 1, tag=1)
            after = communicator.send(sent, 1, tag=2)
            communicator.all_reduce(total).wait(20)
            before.wait(20)
            after.wait(20)
            return float(total[-1]), 7.0
        communicator.all_reduce(total).wait(20)
        received = torch.empty(size)
        communicator.receive(received, 0, tag=2).wait(20)
        communicator.send(received, 0, tag=1).wait(20)
        return float(total[-1]), float(received[-1])

    assert run_communicators(body, 2, channel=channel) == [(2.0, 7.0)] * 2


@pytest.mark.parametrize("channel", KINDS, ids=str)
def test_whoever_sends_first_is_received_from_any_source(channel: object) -> None:
    def body(communicator: Communicator) -> list[tuple[int, float]]:
        if communicator.rank:
            communicator.send(torch.full((4,), float(communicator.rank)), 0, tag=5).wait(20)
            return []
        found = []
        for _ in range(2):
            received = torch.empty(4)
            work = communicator.receive(received, None, tag=5)
            work.wait(20)
            found.append((work.source, float(received[0])))
        return sorted(found)

    assert run_communicators(body, 3, channel=channel)[0] == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("channel", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_longer_buffer_is_filled_in_part_and_a_shorter_one_is_an_error_of_its_own(channel: object, size: int) -> None:
    def body(communicator: Communicator) -> str:
        if communicator.rank == 0:
            sends = [communicator.send(torch.ones(size), 1, tag) for tag in range(3)]
            sends[0].wait(20)
            if size > EAGER_BYTES // 4:
                with pytest.raises(FrameMismatchError, match="rank 1 has room for"):
                    sends[1].wait(20)
            sends[2].wait(20)
            communicator.barrier().wait(20)
            return ""
        longer, shorter, exact = torch.zeros(size + 2), torch.zeros(size - 1), torch.zeros(size)
        communicator.receive(longer, 0, 0).wait(20)
        assert longer.tolist() == [1.0] * size + [0.0] * 2
        with pytest.raises(FrameMismatchError) as raised:
            communicator.receive(shorter, 0, 1).wait(20)
        assert not shorter.any()
        communicator.receive(exact, 0, 2).wait(20)
        assert exact.all()
        communicator.barrier().wait(20)
        return str(raised.value)

    sent = run_communicators(body, 2, channel=channel)[1]
    assert sent == (
        f"rank 0 sends {size} float32 ({4 * size} B) with tag 1; "
        f"rank 1 has room for {size - 1} float32 ({4 * size - 4} B) with tag 1"
    )


@pytest.mark.parametrize("channel", KINDS, ids=str)
def test_what_was_sent_before_its_sender_left_can_be_received(channel: object) -> None:
    left = threading.Event()

    def body(communicator: Communicator) -> float:
        values = torch.full((EAGER_BYTES // 4,), 3.0)
        if communicator.rank == 0:
            communicator.receive(torch.empty(1), 1).wait(20)
            communicator.send(values, 1, tag=9).wait(20)
            communicator.close()
            left.set()
            return 0.0
        communicator.send(torch.ones(1), 0).wait(20)
        assert left.wait(20)
        received = torch.empty_like(values)
        communicator.receive(received, 0, tag=9).wait(20)
        with pytest.raises(PeerLostError, match="rank 0 is lost: it closed the group"):
            communicator.receive(received, 0, tag=9).wait(20)
        with pytest.raises(PeerLostError, match="rank 0 is lost"):
            communicator.send(received, 0, tag=9).wait(20)
        return float(received.mean())

    assert run_communicators(body, 2, channel=channel)[1] == 3.0


@pytest.mark.parametrize("channel", KINDS, ids=str)
def test_bytes_are_counted_where_they_go(channel: object) -> None:
    size_bytes = 4 * 100_000

    def body(communicator: Communicator) -> list[int]:
        values = torch.ones(100_000)
        if communicator.rank == 0:
            communicator.send(values, 2).wait(20)
        elif communicator.rank == 2:
            communicator.receive(values, 0).wait(20)
        communicator.barrier().wait(20)
        deadline_s = time.monotonic() + 20
        while True:
            counts = communicator.statistics()
            moved = [counts[peer].payload_bytes_sent + counts[peer].payload_bytes_received for peer in sorted(counts)]
            if communicator.rank == 1 or max(moved) > size_bytes or time.monotonic() > deadline_s:
                return moved

    results = run_communicators(body, 3, channel=channel)
    for mine, other in ((results[0][1], results[0][0]), (results[2][0], results[2][1])):
        assert size_bytes < mine < 1.05 * size_bytes
        assert other < 1000
    assert max(results[1]) < 1000


@pytest.mark.parametrize("channel", KINDS, ids=str)
def test_any_number_of_short_messages_may_wait_for_a_peer(channel: object) -> None:
    """More than the kernel takes buffers in one call (IOV_MAX in sendmsg(2)), of which a message has four."""
    num_messages = 1000
    posted = threading.Event()

    def body(communicator: Communicator) -> list[float]:
        if communicator.rank == 0:
            works = [communicator.send(torch.tensor([float(number)]), 1) for number in range(num_messages)]
            posted.set()
            for work in works:
                work.wait(20)
            return []
        assert posted.wait(20)
        received = torch.empty(num_messages, 1)
        for work in [communicator.receive(row, 0) for row in received]:
            work.wait(20)
        return received.flatten().tolist()

    assert run_communicators(body, 2, channel=channel) == [[], [float(number) for number in range(num_messages)]]
