"""The threads and connections of point-to-point messages: who waits how long, and what ends it."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.threads import groups, run_communicators, run_threads
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels.base import CHANNELS
from transports.channels.memory import MemoryStore
from transports.collectives.base import COLLECTIVES
from transports.errors import PeerLostError, PeerTimeoutError, TransportError
from transports.execution.communicator import Communicator, Work
from transports.execution.operations import Transport
from transports.execution.point_to_point import EAGER_BYTES, WINDOW_BYTES
from transports.execution.trace import OperationTrace
from transports.group import Group

CHANNEL_KINDS = ("memory", "tcp")
LONG = EAGER_BYTES  # elements, of four bytes: four times what is sent unasked
SHORT_S, PATIENT_S = 1.0, 20.0
"""Timeouts of what nobody matches, and of what must succeed however late a busy machine lets the other side be."""


def pair_threads(communicator: Communicator) -> list[threading.Thread]:
    """Of all members of its group that are in this process."""
    group = communicator._thread.name.removeprefix("communication")
    threads = threading.enumerate()
    return [each for each in threads if each.name.startswith("point to point") and each.name.endswith(group)]


def cpu_s(threads: list[threading.Thread]) -> float:
    """What they have had of a core: proc_pid_schedstat(5)."""
    return 1e-9 * sum(
        int(Path(f"/proc/self/task/{each.native_id}/schedstat").read_text().split()[0]) for each in threads
    )


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
@pytest.mark.parametrize("kind", ["send", "receive"])
def test_what_only_one_side_asks_for_times_out_and_harms_nothing(channel: str, kind: str) -> None:
    timed_out = threading.Event()

    def body(communicator: Communicator) -> float:
        values = torch.ones(10)
        if communicator.rank == 0:
            start: Callable[..., Any] = getattr(communicator, kind)
            with pytest.raises(
                PeerTimeoutError, match=rf"the {kind} of 10 float32 \(40 B\) with tag 3 timed out.*rank 1"
            ):
                start(values, 1, 3).wait(20)
            timed_out.set()
        assert timed_out.wait(20)
        communicator._timeout_s = PATIENT_S
        communicator.all_reduce(values).wait(20)
        peer, received = 1 - communicator.rank, torch.empty(10)
        sending = communicator.send(values, peer)
        communicator.receive(received, peer).wait(20)
        sending.wait(20)
        return float(received.sum())

    assert run_communicators(body, 2, channel=channel, timeout_s=SHORT_S) == [20.0, 20.0]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_what_is_not_matched_in_time_fails_alone(channel: str) -> None:
    """The pair's connection is there, and stays; a receive that comes after the sender gave up finds nothing."""
    both_done = threading.Barrier(2)

    def body(communicator: Communicator) -> list[str]:
        peer, values = 1 - communicator.rank, torch.ones(LONG)
        pending = [communicator.send(values, peer, tag=1), communicator.receive(values.clone(), peer, tag=2)]
        errors = []
        for work in pending:
            with pytest.raises(PeerTimeoutError) as raised:
                work.wait(20)
            errors.append(str(raised.value))
        communicator.barrier(PATIENT_S).wait(20)
        late = communicator.receive(torch.empty(LONG), peer, tag=1)
        communicator._timeout_s = PATIENT_S
        received, sending = torch.zeros(LONG), communicator.send(values, peer, tag=3)
        communicator.receive(received, peer, tag=3).wait(20)
        sending.wait(20)
        assert torch.equal(received, values)
        # The barrier may overtake the word that the send was given up: then the receive was matched with it.
        with pytest.raises(TransportError, match=r"tag 1(: it)? timed out"):
            late.wait(20)
        both_done.wait(20)
        return errors

    for errors in run_communicators(body, 2, channel=channel, timeout_s=SHORT_S):
        assert "the send of 65536 float32 (262144 B) with tag 1 timed out" in errors[0]
        assert "the receive of 65536 float32 (262144 B) with tag 2 timed out" in errors[1]


def test_a_receive_from_any_that_nobody_serves_times_out_once() -> None:
    timed_out = threading.Event()

    def body(communicator: Communicator) -> float:
        if communicator.rank == 0:
            with pytest.raises(TransportError, match=r"the receive of 4 float32 \(16 B\) .* from any rank timed out"):
                communicator.receive(torch.empty(4), None, tag=6).wait(20)
            timed_out.set()
            communicator._timeout_s = PATIENT_S
            received = torch.zeros(4)
            work = communicator.receive(received, None, tag=6)
            work.wait(20)
            return float(received[0]) + work.source
        if communicator.rank == 2:
            assert timed_out.wait(20)
            communicator._timeout_s = PATIENT_S
            communicator.send(torch.full((4,), 40.0), 0, tag=6).wait(20)
        return 42.0

    assert run_communicators(body, 3, timeout_s=SHORT_S) == [42.0] * 3


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_closing_ends_what_waits_at_once(channel: str) -> None:
    closed = threading.Event()

    def body(communicator: Communicator) -> float:
        peer = 1 - communicator.rank
        if communicator.rank == 1:
            communicator.barrier().wait(20)
            assert closed.wait(20), "who leaves before the other has closed is what that one waits for in vain"
            return 0.0
        works = [communicator.receive(torch.empty(4), peer), communicator.send(torch.empty(4), peer)]
        communicator.barrier().wait(20)
        begun_s = time.monotonic()
        communicator.close()
        closed.set()
        for work in (*works, communicator.receive(torch.empty(4), peer), communicator.receive(torch.empty(4), None)):
            with pytest.raises(TransportError, match="rank 0 closed the group itself"):
                work.wait(5)
        return time.monotonic() - begun_s

    assert run_communicators(body, 2, channel=channel, timeout_s=60)[0] < 10


@pytest.mark.parametrize("num_under_way", [0, 1 << 24])
@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_a_peer_that_leaves_fails_what_waits_for_it_and_nothing_else(channel: str, num_under_way: int) -> None:
    both_saw_it = threading.Barrier(2)

    def body(communicator: Communicator) -> list[float]:
        rank, values = communicator.rank, torch.full((4,), 1.0 + communicator.rank)
        opening = communicator.receive(torch.empty(4), (rank + 1) % 3)  # opens all pairs
        communicator.send(values, (rank - 1) % 3).wait(20)
        opening.wait(20)
        if num_under_way and rank != 1:  # the one that leaves is in the middle of a receive, and says no goodbye there
            start: Callable[..., Any] = communicator.send if rank == 0 else communicator.receive
            start(torch.empty(num_under_way), 2 - rank, 9)
        communicator.barrier().wait(20)
        if rank == 2:
            communicator.close()
            return []
        from_any, received = torch.zeros(4), torch.zeros(4)
        waiting = communicator.receive(torch.empty(4), 2, tag=5)
        anyone = communicator.receive(from_any, None, tag=6)
        with pytest.raises(PeerLostError, match="rank 2 is lost: it closed the group"):
            waiting.wait(20)
        both_saw_it.wait(20)
        assert not anyone.done()
        both_saw_it.wait(20)
        sending = [communicator.send(values, 1 - rank, tag) for tag in (6, 7)]
        anyone.wait(20)
        communicator.receive(received, 1 - rank, tag=7).wait(20)
        for work in sending:
            work.wait(20)
        return [anyone.source, float(from_any[0]), float(received[0])]

    assert run_communicators(body, 3, channel=channel)[:2] == [[1.0, 2.0, 2.0], [0.0, 1.0, 1.0]]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_a_peer_that_left_before_there_was_a_connection_is_noticed_and_others_serve(channel: str) -> None:
    def body(communicator: Communicator) -> list[float]:
        communicator.barrier().wait(20)
        if communicator.rank == 2:
            communicator.close()
            return []
        begun_s = time.monotonic()
        for kind in ("send", "receive"):
            with pytest.raises(PeerLostError, match="rank 2 is lost: it closed the group"):
                getattr(communicator, kind)(torch.ones(4), 2).wait(20)
        received = torch.zeros(4)
        anyone = communicator.receive(received, None, tag=1)
        sending = communicator.send(torch.full((4,), 1.0 + communicator.rank), 1 - communicator.rank, tag=1)
        anyone.wait(20)
        sending.wait(20)
        return [float(received[0]), float(anyone.source), float(time.monotonic() - begun_s < 15)]

    assert run_communicators(body, 3, channel=channel, timeout_s=60)[:2] == [[2.0, 1.0, 1.0], [1.0, 0.0, 1.0]]


@pytest.mark.parametrize("wanted", [True, False], ids=["while it opens", "before"])
def test_a_peer_that_dies_before_there_is_a_connection_is_noticed(wanted: bool) -> None:
    """It had a message for us, too, and both were about to open the connection; or it had none."""
    ring, tcp = COLLECTIVES.parse("ring"), CHANNELS.parse("tcp")
    ours, theirs = groups(2, timeout_s=60)

    def survive(communicator: Communicator) -> float:
        with closing(communicator):
            if wanted:
                ours.store.set(f"{ours.name}/p2p/0-1/1/wanted", "1")
            waiting = communicator.receive(torch.empty(4), 1)
            threading.Event().wait(0.2)
            assert not waiting.done()
            died.set()
            begun_s = time.monotonic()
            with pytest.raises(PeerLostError, match="rank 1 is lost: it closed the connection"):
                waiting.wait(30)
            return time.monotonic() - begun_s

    def life(group: Group) -> float:
        communicator = Communicator(ring, tcp, group)
        if group.rank == 0:
            return survive(communicator)
        assert died.wait(20)
        endpoint = communicator._endpoint
        assert isinstance(endpoint, TcpEndpoint)
        for peer in endpoint._peers.values():
            peer.socket.shutdown(socket.SHUT_RDWR)
        communicator.close()
        return 0.0

    died = threading.Event()
    waited_s, _ = run_threads(life, [ours, theirs])
    assert waited_s < 15


def test_short_messages_that_nobody_receives_are_held_back_in_time() -> None:
    """More than the window: what is beyond it waits at the sender; all of it arrives, in order."""
    num_messages = 3 * WINDOW_BYTES // EAGER_BYTES
    looked = threading.Event()

    def body(communicator: Communicator) -> list[float]:
        if communicator.rank == 0:
            communicator.receive(torch.empty(1), 1, tag=1).wait(20)
            works = [communicator.send(torch.full((EAGER_BYTES // 4,), float(n)), 1) for n in range(num_messages)]
            works[0].wait(20)
            communicator.barrier().wait(20)
            assert not works[-1].done()
            looked.set()
            for work in works:
                work.wait(20)
            return []
        communicator.send(torch.ones(1), 0, tag=1).wait(20)
        communicator.barrier().wait(20)
        assert looked.wait(20)
        received = torch.empty(EAGER_BYTES // 4)
        numbers = []
        for _ in range(num_messages):
            communicator.receive(received, 0).wait(20)
            assert float(received.min()) == float(received.max())
            numbers.append(float(received[0]))
        return numbers

    assert run_communicators(body, 2) == [[], [float(number) for number in range(num_messages)]]


def test_each_message_is_traced() -> None:
    traces: list[OperationTrace] = []

    def body(communicator: Communicator) -> None:
        if communicator.rank == 0:
            communicator.send(torch.ones(1000), 1).wait(20)
        else:
            communicator.receive(torch.ones(2000), 0).wait(20)

    before_s = time.monotonic()
    run_communicators(body, 2, on_trace=traces.append)
    assert sorted((trace.operation, trace.size_bytes) for trace in traces) == [("receive", 8000), ("send", 4000)]
    for trace in traces:
        assert trace.sequence == 1
        assert before_s <= trace.enqueued_s <= trace.started_s <= trace.first_byte_s <= trace.done_s <= time.monotonic()


def test_a_group_without_messages_has_no_threads_for_them_and_idle_ones_sleep() -> None:
    both_measured = threading.Barrier(2)

    def body(communicator: Communicator) -> tuple[int, list[threading.Thread], float]:
        communicator.all_reduce(torch.ones(4)).wait(20)
        communicator.barrier().wait(20)
        num_before = len(pair_threads(communicator))
        communicator.barrier().wait(20)
        peer = 1 - communicator.rank
        communicator.send(torch.ones(4), peer)
        communicator.receive(torch.ones(4), peer).wait(20)
        communicator.barrier().wait(20)
        threads = pair_threads(communicator)
        begun_s = cpu_s(threads)
        threading.Event().wait(0.5)
        used_s = cpu_s(threads) - begun_s
        both_measured.wait(20)
        return num_before, threads, used_s

    for num_before, threads, used_s in run_communicators(body, 2, channel="tcp"):
        assert num_before == 0
        assert len(threads) == 2
        assert used_s < 0.1
        assert not any(thread.is_alive() for thread in threads)


def test_many_pairs_at_once() -> None:
    def body(communicator: Communicator) -> list[float]:
        peers = [rank for rank in range(communicator.size) if rank != communicator.rank]
        received = {(peer, tag): torch.empty(100 * tag) for peer in peers for tag in (1, 400)}
        works = [communicator.receive(values, peer, tag) for (peer, tag), values in received.items()]
        for tag in (400, 1):
            works += [communicator.send(torch.full((100 * tag,), 1.0 + communicator.rank), peer, tag) for peer in peers]
        for work in works:
            work.wait(20)
        return [float(received[peer, 400][-1] - 1) for peer in peers]

    results = run_communicators(body, 5, channel="tcp")
    assert results == [[float(peer) for peer in range(5) if peer != rank] for rank in range(5)]


def test_a_pairs_connection_that_breaks_leaves_collectives_alone() -> None:
    ring, tcp = COLLECTIVES.parse("ring"), CHANNELS.parse("tcp")

    def life(group: Group) -> float:
        with closing(Communicator(ring, tcp, group)) as communicator:
            peer, values = 1 - group.rank, torch.ones(4)
            communicator.send(values, peer)
            communicator.receive(values, peer).wait(20)
            communicator.barrier().wait(20)
            waiting = communicator.receive(values, peer)
            if group.rank:
                communicator._point_to_point._pairs[0]._endpoint.close()
            with pytest.raises(TransportError):
                waiting.wait(20)
            total = torch.ones(4)
            communicator.all_reduce(total).wait(20)
            return float(total.sum())

    assert run_threads(life, groups(2)) == [8.0, 8.0]


@pytest.mark.parametrize("fails", ["send", "receive"])
def test_a_tensor_is_its_owners_once_its_error_is_reported_which_waits_for_no_goodbye(fails: str) -> None:
    """Over a channel whose threads move bytes by themselves, which would take a quarter of a minute for the message."""
    under_way, closing_begins, over = threading.Event(), threading.Event(), threading.Event()

    def fail(communicator: Communicator, values: torch.Tensor, message: Work) -> None:
        pair = communicator._point_to_point._pairs[1]
        endpoint = pair._endpoint
        assert endpoint is not None
        close = endpoint.close

        def close_late() -> None:
            assert closing_begins.wait(20)
            close()

        vars(endpoint)["close"] = close_late
        pair.begin_closing(TransportError("enough"), in_order=True)
        with pytest.raises(TransportError, match="enough"):
            message.wait(10)
        values.fill_(7)
        threading.Event().wait(0.3)  # in which whoever still holds the tensor would use it
        closing_begins.set()
        pair.join()
        over.set()
        num_changed = int((values != 7).sum())
        assert num_changed == 0

    def body(communicator: Communicator) -> None:
        rank, peer = communicator.rank, 1 - communicator.rank
        opening = communicator.send(torch.ones(1), peer)
        communicator.receive(torch.ones(1), peer).wait(20)
        opening.wait(20)
        values, sends = torch.full((1 << 24,), float(rank)), (rank == 0) == (fails == "send")
        message = communicator.send(values, peer) if sends else communicator.receive(values, peer)
        deadline_s = time.monotonic() + 20
        while not sends and float(values[0]) == rank and time.monotonic() < deadline_s:
            threading.Event().wait(1e-3)
        if not sends:
            under_way.set()
        assert under_way.wait(20)
        if rank == 0:
            fail(communicator, values, message)
            return
        with pytest.raises(PeerLostError):
            message.wait(20)
        assert over.wait(20)
        num_of_later = int((values == 7).sum())
        assert num_of_later == 0

    assert run_communicators(body, 2, channel={"kind": "udp", "rate": "40mbit"}) == [None, None]


class OneAtATime(MemoryStore):
    """As torch's TCPStore: whoever waits on a connection keeps all others on it waiting; a clone is one of its own."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self._lock = store, threading.Lock()

    def clone(self) -> "OneAtATime":
        return OneAtATime(self._store)

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        with self._lock:
            self._store.wait(keys, timeout)

    def check(self, keys: list[str], /) -> bool:
        with self._lock:
            return self._store.check(keys)

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._store.get(key)


def test_a_pair_that_waits_for_an_address_keeps_no_other_waiting() -> None:
    """Rank 1 wants to talk to rank 2, and never says where it is."""
    members = [replace(group, store=OneAtATime(group.store)) for group in groups(3)]  # type: ignore[arg-type]
    members[0].store.set(f"{members[0].name}/p2p/1-2/0/wanted", "1")

    def life(group: Group) -> float:
        with closing(Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), group)) as communicator:
            values = torch.full((10,), float(group.rank))
            begun_s = time.monotonic()
            if group.rank == 2:
                communicator.receive(torch.empty(10), 1)
                time.sleep(0.5)
                communicator.send(values, 0).wait(20)
            elif group.rank == 0:
                communicator.receive(values, 2).wait(20)
            took_s = time.monotonic() - begun_s
            communicator.barrier().wait(20)
            return took_s

    found = run_threads(life, members)
    assert all(isinstance(each, float) and each < 10.0 for each in found), found


def test_a_group_may_be_closed_by_a_handler_while_a_pair_is_made() -> None:
    """It came upon the thread that held the lock."""

    class Closing(OneAtATime):
        communicator: Communicator | None = None

        def clone(self) -> OneAtATime:
            if self.communicator is not None:
                self.communicator.close()
            return super().clone()

    stores = [Closing(group.store) for group in groups(2)]  # type: ignore[arg-type]
    members = [replace(group, store=store) for group, store in zip(groups(2), stores, strict=True)]

    def life(number: int) -> str:
        communicator = Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), members[number])
        if number == 0:
            stores[0].communicator = communicator
            with pytest.raises(TransportError):
                communicator.send(torch.ones(3), 1).wait(20)
        communicator.close()
        return "closed"

    assert run_threads(life, range(2)) == ["closed"] * 2


def test_what_closing_raises_is_heard_by_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that is out of reach: the communication thread ended, and its operations never did."""

    def close(self: Transport) -> None:
        closed(self)
        raise OSError("network is unreachable")

    closed = Transport.close
    monkeypatch.setattr(Transport, "close", close)

    def body(communicator: Communicator) -> str:
        if communicator.rank == 1:
            return ""
        with pytest.raises(TransportError) as raised:
            communicator.all_reduce(torch.ones(3)).wait(20)
        return str(raised.value)

    assert "rank 1" in run_communicators(body, 2, channel="tcp", timeout_s=SHORT_S)[0]
