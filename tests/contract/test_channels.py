"""What every channel promises: messages arrive whole and in order, and whatever goes wrong is an error in time."""

import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from testbed.system.processes import thread_name
from tests.threads import groups, run_threads
from transports.channels.base import CHANNELS, Channel, Completion, Endpoint, Header
from transports.channels.framing import DTYPE_BYTES, DTYPES, OPERATIONS
from transports.collectives.ring import Ring
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.execution.operations import Transport
from transports.group import Group

KINDS = (*CHANNELS.kinds(), "tcp of 3 streams")
UINT8, FLOAT32 = DTYPES.index("uint8"), DTYPES.index("float32")
ALL_REDUCE, BROADCAST = OPERATIONS.index("all_reduce"), OPERATIONS.index("broadcast")
FOREVER_S = 30.0


def channel_of(kind: str) -> Channel:
    """`tcp`, or `tcp of 3 streams`."""
    kind, _, streams = kind.removesuffix(" streams").partition(" of ")
    return CHANNELS.parse({"kind": kind, "streams": int(streams)} if streams else kind)


def header(count: int, *, phase: int = 0, sequence: int = 1, operation: int = ALL_REDUCE, dtype: int = UINT8) -> Header:
    return Header(7, sequence, operation, dtype, count, phase)


def finish(endpoint: Endpoint, tokens: set[int], within_s: float = FOREVER_S) -> None:
    deadline_s = time.monotonic() + within_s
    while tokens:
        tokens -= {completion.token for completion in endpoint.progress(deadline_s)}


def ring_pass(endpoint: Endpoint, group: Group, sequence: int, num_bytes: int = 1000) -> None:
    """Send to the next, receive from the previous rank."""
    view = memoryview(bytearray(num_bytes))
    tokens = {
        endpoint.post_send((group.rank + 1) % group.size, header(num_bytes, sequence=sequence), view),
        endpoint.post_receive((group.rank - 1) % group.size, header(num_bytes, sequence=sequence), view[:]),
    }
    finish(endpoint, tokens, group.timeout_s)


def together(kind: str, body: Callable[[Endpoint, Group], Any], size: int, timeout_s: float = FOREVER_S) -> list[Any]:
    """Run `body` on every rank; an endpoint whose body fails is closed, as the communicator does."""

    def life(group: Group) -> Any:
        with closing(channel_of(kind).open(group)) as endpoint:
            return body(endpoint, group)

    return run_threads(life, groups(size, timeout_s=timeout_s))


@pytest.mark.parametrize("kind", [kind for kind in CHANNELS.kinds() if channel_of(kind).shared_threads])
def test_threads_that_are_the_whole_process_are_called_as_the_channel_says(kind: str) -> None:
    """Whoever runs them first, and counts their waiting, finds them by these names."""

    def names(endpoint: Endpoint, group: Group) -> set[str]:
        ring_pass(endpoint, group, 1)
        return {thread_name(int(task.name)) for task in Path("/proc/self/task").iterdir()}

    for found in together(kind, names, 2):
        assert channel_of(kind).shared_threads <= found


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def settled_descriptors() -> int:
    """How many there are once a library has closed what it closes a moment later: so many for a quarter of a second."""
    count, since_s = num_descriptors(), time.monotonic()
    while time.monotonic() - since_s < 0.25:
        time.sleep(0.01)
        if (now := num_descriptors()) != count:
            count, since_s = now, time.monotonic()
    return count


def eventually(holds: Callable[[], bool]) -> bool:
    """Libraries close their connections on threads of their own, a moment later."""
    deadline_s = time.monotonic() + FOREVER_S
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_arrive_whole_and_in_order(kind: str) -> None:
    sizes = [0, 1, 33, 1 << 20, 0, 7, 3 << 20, 100]

    def body(endpoint: Endpoint, group: Group) -> None:
        peer = 1 - group.rank
        sent = [memoryview(bytes([group.rank * 100 + number]) * size) for number, size in enumerate(sizes)]
        received = [memoryview(bytearray(size)) for size in sizes]
        tokens = set()
        for number, size in enumerate(sizes):
            tokens.add(endpoint.post_send(peer, header(size, phase=number), sent[number]))
            tokens.add(endpoint.post_receive(peer, header(size, phase=number), received[number]))
        assert len(tokens) == 2 * len(sizes)
        finish(endpoint, tokens)
        for number, size in enumerate(sizes):
            assert received[number] == bytes([peer * 100 + number]) * size

    assert together(kind, body, 2) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_receive_may_be_posted_before_and_after_the_message_comes(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> bytes:
        if group.rank == 0:
            for phase in range(3):
                finish(endpoint, {endpoint.post_send(1, header(4, phase=phase), memoryview(b"abcd"))})
            return b""
        received = bytearray()
        for phase in range(3):
            view = bytearray(4)
            finish(endpoint, {endpoint.post_receive(0, header(4, phase=phase), memoryview(view))})
            received += view
        return bytes(received)

    assert together(kind, body, 2)[1] == b"abcd" * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("num_rounds", [0, 1, 4])
def test_survivors_of_a_peer_that_closes_lose_a_rank(kind: str, size: int, num_rounds: int) -> None:
    """Whenever a member closes, all others find out long before the timeout, and that it was this one."""

    def body(endpoint: Endpoint, group: Group) -> int | None:
        for sequence in range(1, 100):
            if group.rank == size - 1 and sequence > num_rounds:
                return None
            try:
                ring_pass(endpoint, group, sequence)
            except PeerLostError as error:
                return error.peer
        raise AssertionError("nobody noticed")

    started_s = time.monotonic()
    results = together(kind, body, size)
    assert results[-1] is None
    assert results[:-1] == [size - 1] * (size - 1)
    assert time.monotonic() - started_s < FOREVER_S / 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_closes_in_the_middle_of_a_message_is_lost(kind: str) -> None:
    num_bytes = 64 << 20  # more than any socket buffer holds

    def body(endpoint: Endpoint, group: Group) -> int | None:
        view = memoryview(bytearray(num_bytes))
        if group.rank == 0:
            endpoint.post_send(1, header(num_bytes), view)
            endpoint.post_receive(1, header(1), memoryview(bytearray(1)))
            endpoint.wake()
            endpoint.progress(time.monotonic() + FOREVER_S)
            return None
        with pytest.raises(PeerLostError) as raised:
            finish(endpoint, {endpoint.post_receive(0, header(num_bytes), view), -1})
        return raised.value.peer

    started_s = time.monotonic()
    assert together(kind, body, 2)[1] == 0
    assert time.monotonic() - started_s < FOREVER_S / 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_not_needed_is_missed_as_well(kind: str) -> None:
    """Rank 2 dies in the middle of an operation; ranks 0 and 1, who wait for each other, hear of it at once."""
    died = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> int | None:
        view = memoryview(bytearray(1))
        if group.rank == 2:
            endpoint.post_receive(0, header(1), view)
            endpoint.close()
            died.set()
            return None
        died.wait()
        with pytest.raises(PeerLostError) as raised:
            finish(endpoint, {endpoint.post_receive(1 - group.rank, header(1), view)})
        return raised.value.peer

    first, second, _ = together(kind, body, 3)
    assert [first, second] == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_has_done_its_part_may_leave(kind: str) -> None:
    """Ranks that finish an operation early and close do not disturb those who are still busy with it."""
    left = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> bytes | None:
        view = memoryview(bytearray(b"final data"))
        if group.rank == 2:
            finish(endpoint, {endpoint.post_send(0, header(10), view)})
            endpoint.close()
            left.set()
            return None
        left.wait()
        received = bytearray(10)
        source = 2 if group.rank == 0 else 0
        finish(endpoint, {endpoint.post_receive(source, header(10), memoryview(received))})
        if group.rank == 0:
            finish(endpoint, {endpoint.post_send(1, header(10), memoryview(received))})
        return bytes(received)

    assert together(kind, body, 3) == [b"final data", b"final data", None]


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_received_all_that_was_sent_to_it_may_leave(kind: str) -> None:
    """So much that whoever sends it waits for it to arrive, where the channel answers for that."""
    num_bytes = 1 << 20
    left = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> bytes:
        view = bytearray(num_bytes)
        if group.rank == 1:
            finish(endpoint, {endpoint.post_receive(0, header(num_bytes), memoryview(view))})
            endpoint.close()
            left.set()
            return bytes(view)
        view[:] = sent
        tokens = {endpoint.post_send(1, header(num_bytes), memoryview(view))}
        while not left.is_set():
            tokens -= {each.token for each in endpoint.progress(math.inf, time.monotonic() + 1e-3)}
        finish(endpoint, tokens)
        return b""

    sent = random.Random(1).randbytes(num_bytes)
    assert together(kind, body, 2) == [b"", sent]


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_nothing_to_do_in_an_operation_may_leave_at_once(kind: str) -> None:
    """Rank 2 neither sends nor receives in the last operation; ranks 0 and 1 exchange something after it has left."""
    left = threading.Event()

    def life(group: Group) -> list[float]:
        counts = [3, 3, 0] if group.rank < 2 else [0, 0, 0]
        inputs = [torch.full((count,), float(group.rank)) for count in counts]
        outputs = [torch.zeros(count) for count in counts]
        with closing(Transport(Ring(), channel_of(kind), group)) as transport:
            transport.begin(time.monotonic() + FOREVER_S)
            transport.barrier()
            if group.rank < 2:
                assert left.wait(FOREVER_S)
            transport.all_to_all(outputs, inputs)
        left.set()
        return torch.cat(outputs).tolist()

    exchanged = [0.0] * 3 + [1.0] * 3
    assert run_threads(life, groups(3, timeout_s=FOREVER_S)) == [exchanged, exchanged, []]


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_peer_times_out(kind: str) -> None:
    over = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> float | None:
        if group.rank == 1:
            over.wait()
            return None
        started_s = time.monotonic()
        with pytest.raises(PeerTimeoutError, match=r"all_reduce \(sum\) #1, message 0: 4 uint8") as raised:
            finish(endpoint, {endpoint.post_receive(1, header(4), memoryview(bytearray(4)))}, within_s=0.3)
        waited_s = time.monotonic() - started_s
        over.set()
        assert raised.value.peer == 1
        return waited_s

    waited_s, _ = together(kind, body, 2)
    assert 0.3 <= waited_s < 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("other", "reported"),
    [
        (header(4, operation=BROADCAST), "broadcast (from rank 0) #1"),
        (header(4, sequence=2), "all_reduce (sum) #2"),
        (header(4, phase=5), "message 5"),
        (header(1, dtype=FLOAT32), "1 float32"),
        (header(0), "0 uint8"),
        (header(3), "3 uint8"),
        (header(4)._replace(group=8), "groups 0x8 and 0x7 differ"),
    ],
)
def test_a_disagreement_names_both_sides(kind: str, other: Header, reported: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> str:
        view = memoryview(bytearray(4))
        if group.rank == 1:
            waiting.wait()
            endpoint.post_send(0, other, view[: other.count * DTYPE_BYTES[other.dtype]])
            with pytest.raises(PeerLostError):  # rank 0 gives up
                finish(endpoint, {endpoint.post_receive(0, header(4), view), -1})
            return ""
        token = endpoint.post_receive(1, header(4), view)
        endpoint.wake()
        endpoint.progress(time.monotonic() + FOREVER_S)  # it has looked and found nothing
        waiting.set()
        with pytest.raises(FrameMismatchError) as raised:
            finish(endpoint, {token})
        return str(raised.value)

    waiting = threading.Event()
    message = together(kind, body, 2)[0]
    assert reported in message
    assert "rank 1 sends" in message
    assert "rank 0 expects all_reduce (sum) #1, message 0: 4 uint8" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_wake_ends_the_waiting_early(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> list[Completion]:
        waker = threading.Thread(target=endpoint.wake)
        waker.start()
        completions = endpoint.progress(time.monotonic() + FOREVER_S)
        waker.join()
        return list(completions)

    started_s = time.monotonic()
    assert together(kind, body, 1) == [[]]
    assert time.monotonic() - started_s < FOREVER_S / 2


@pytest.mark.parametrize("kind", KINDS)
def test_closing_from_another_thread_ends_the_waiting(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> None:
        closer = threading.Thread(target=endpoint.close)
        closer.start()
        with pytest.raises(TransportError, match="closed the group itself"):
            finish(endpoint, {-1})
        closer.join()

    assert together(kind, body, 1) == [None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_never_comes_is_named(kind: str) -> None:
    both_begin = threading.Barrier(2)

    def life(group: Group) -> Any:
        if group.rank == 1:
            return None
        both_begin.wait(FOREVER_S)
        with pytest.raises((PeerTimeoutError, PeerLostError)) as raised:
            channel_of(kind).open(group)
        assert isinstance(raised.value, PeerTimeoutError | PeerLostError)
        return type(raised.value), raised.value.peer

    first, _, third = run_threads(life, groups(3, timeout_s=0.3))
    assert first == (PeerTimeoutError, 1)
    # Who found out about rank 1 may be gone already, or not to be had any more.
    assert third in ((PeerTimeoutError, 1), (PeerTimeoutError, 0), (PeerLostError, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_come_and_go_without_leaving_anything(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> None:
        for sequence in range(1, 4):
            ring_pass(endpoint, group, sequence)

    assert together(kind, body, 3) == [None] * 3
    before, num_threads = num_descriptors(), threading.active_count()
    for _ in range(3):
        assert together(kind, body, 4) == [None] * 4
    # Fewer are fine: of the first group some may not have been gone yet. A leak would be of twelve endpoints.
    assert eventually(lambda: num_descriptors() <= before and threading.active_count() <= num_threads)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_rendezvous_leaves_nothing(kind: str) -> None:
    together(kind, lambda endpoint, group: None, 2)  # what a library opens once for all groups is there
    before = settled_descriptors()
    with pytest.raises(PeerTimeoutError):
        channel_of(kind).open(groups(2, timeout_s=0.05)[0])
    assert eventually(lambda: num_descriptors() <= before)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_count_payload_and_survive_closing(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> Endpoint:
        ring_pass(endpoint, group, 1, num_bytes=100_000)
        return endpoint

    for rank, endpoint in enumerate(together(kind, body, 3)):
        counts = endpoint.statistics()
        num_bytes = 100_000 + channel_of(kind).header_bytes
        assert counts[(rank + 1) % 3].payload_bytes_sent == num_bytes
        assert counts[(rank - 1) % 3].payload_bytes_received == num_bytes
        assert counts[(rank - 1) % 3].payload_bytes_sent == 0


@pytest.mark.parametrize("kind", CHANNELS.kinds())
def test_wire_bytes_agree_with_the_goodput(kind: str) -> None:
    channel = channel_of(kind)
    for mtu in (1500, 9000):
        forward, reverse = channel.wire_bytes(100_000_000, mtu)
        assert 100_000_000 / forward == pytest.approx(channel.goodput_fraction(mtu), rel=1e-4)
        assert 0 <= reverse < forward / 10
        assert channel.wire_bytes(0, mtu) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_can_be_looked_at_before_it_is_received(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> list[object]:
        if group.rank == 0:
            finish(endpoint, {endpoint.post_send(1, header(4), memoryview(b"abcd"))})
            return []
        seen: list[object] = [endpoint.peek(0, time.monotonic() + FOREVER_S) for _ in range(2)]
        view = memoryview(bytearray(4))
        finish(endpoint, {endpoint.post_receive(0, header(4), view)})
        return [*seen, bytes(view), endpoint.peek(0, math.inf)]

    assert together(kind, body, 2)[1] == [header(4), header(4), b"abcd", None]


@pytest.mark.parametrize("kind", KINDS)
def test_who_looks_at_one_that_left_because_of_another_hears_of_that_one(kind: str) -> None:
    def body(endpoint: Endpoint, group: Group) -> list[int]:
        if group.rank == 1:
            return []
        lost = []
        if group.rank == 0:
            with pytest.raises(PeerLostError) as found:
                finish(endpoint, {endpoint.post_receive(1, header(4), memoryview(bytearray(4)))})
            return [found.value.peer]
        for _ in range(2):  # what it says last itself is what it has heard
            with pytest.raises(PeerLostError) as found:
                endpoint.peek(0, time.monotonic() + FOREVER_S)
            lost.append(found.value.peer)
        return lost

    assert together(kind, body, 3) == [[1], [], [1, 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_who_looks_does_not_wait_longer_than_it_says(kind: str) -> None:
    done = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> None:
        if group.rank == 0:
            done.wait()
            return
        with pytest.raises(PeerTimeoutError, match="its next message"):
            endpoint.peek(0, time.monotonic() + 0.05)
        done.set()

    assert together(kind, body, 2) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_until_a_time_comes_back_then_and_no_harm_is_done(kind: str) -> None:
    looked = threading.Event()

    def body(endpoint: Endpoint, group: Group) -> bytes:
        if group.rank == 0:
            assert looked.wait(FOREVER_S)
            finish(endpoint, {endpoint.post_send(1, header(4), memoryview(b"abcd"))})
            return b""
        view = memoryview(bytearray(4))
        token = endpoint.post_receive(0, header(4), view)
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 0.1:
            assert not endpoint.progress(math.inf, begun_s + 0.1)
        looked.set()
        while not (completions := endpoint.progress(math.inf)):
            pass
        assert completions == [Completion(token)]
        return bytes(view)

    assert together(kind, body, 2) == [b"", b"abcd"]


@pytest.mark.parametrize("lets_go", ["sender", "receiver"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_let_go_of_is_neither_read_nor_written_any_more(kind: str, lets_go: str) -> None:
    """In the middle of a message, whatever the peer does, and whoever else moves bytes of the endpoint."""
    num_bytes = 64 << 20  # more than any socket buffer holds
    begun = threading.Event()

    def let_go(endpoint: Endpoint, view: bytearray) -> None:
        for _ in range(2):
            endpoint.let_go()
        view[:] = b"\7" * num_bytes
        time.sleep(0.1)  # in which whoever still holds it would use it
        endpoint.close()

    def body(endpoint: Endpoint, group: Group) -> int:
        sends = group.rank == 0
        view, post = bytearray([sends]) * num_bytes, endpoint.post_send if sends else endpoint.post_receive
        tokens = {post(1 - group.rank, header(num_bytes), memoryview(view))}
        while not (begun.is_set() if sends else view[0]):
            tokens -= {each.token for each in endpoint.progress(math.inf, time.monotonic() + 1e-3)}
        begun.set()
        if sends == (lets_go == "sender"):
            let_go(endpoint, view)
        else:
            with suppress(PeerLostError):
                finish(endpoint, tokens)
        return view.count(7)

    assert together(kind, body, 2) == ([num_bytes, 0] if lets_go == "sender" else [0, num_bytes])
