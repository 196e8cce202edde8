"""Workers with real sockets on loopback, through the C worker and through its Python twin, against the reference."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from switch_agg.aggregator import Aggregator
from switch_agg.client import Client
from switch_agg.core import Datagram
from switch_agg.driver import Service, open_socket
from switch_agg.errors import AggregationError, AggregatorLostError, EpochEndedError, OverflowedError
from switch_agg.faults import FaultInjector, FaultRates, Faults
from switch_agg.job import Job
from switch_agg.quantize import error_bound
from switch_agg.round_trip import GRANULARITY_S, MIN_TIMEOUT_S
from switch_agg.window import WindowPolicy
from switch_agg.wire import Kind, Packet, decode
from switch_agg.worker import MAX_ROUND_TRIPS

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


class Lossy:
    """An aggregator some of whose datagrams never were, in both directions."""

    def __init__(self, aggregator: Aggregator, rates: FaultRates) -> None:
        self.aggregator = aggregator
        self.injector = FaultInjector(Faults(seed=5, up=rates, down=rates))
        self.deadline_s, self.expire = aggregator.deadline_s, aggregator.expire

    def receive(self, datagrams: Any, now_s: float) -> None:
        for datagram in datagrams:
            for _ in range(self._copies("up", datagram)):
                self.aggregator.receive([datagram], now_s)

    def transmit(self, now_s: float) -> list[Datagram]:
        return [d for d in self.aggregator.transmit(now_s) for _ in range(self._copies("down", d))]

    def _copies(self, direction: Any, datagram: Datagram) -> int:
        return self.injector.fate(direction, HOSTS.index(datagram.peer[0]), 0).copies


class Rack:
    """One aggregator on loopback and its workers."""

    def __init__(
        self,
        stack: ExitStack,
        num_workers: int,
        *,
        rates: FaultRates,
        natives: Any,
        partial_s: float | None,
        **keys: Any,
    ) -> None:
        self.aggregator = Aggregator(generation=1)
        self.opened = open_socket(("127.0.0.9", 0))
        self.service = Service(Lossy(self.aggregator, rates), self.opened, name="aggregator")
        stack.callback(self.service.close)
        self.job = Job(workers=HOSTS[:num_workers], num_elements=64, num_slots=8, straggler_timeout_s=partial_s)
        self.aggregator.configure(self.job)
        self.clients = [
            stack.enter_context(
                Client(
                    self.job,
                    index,
                    self.opened.getsockname(),
                    local=(HOSTS[index], 0),
                    use_native=natives[index % len(natives)],
                    **keys,
                )
            )
            for index in range(num_workers)
        ]

    def everybody(self, do: Callable[[int, Client], Any]) -> list[Any]:
        """The same on every worker at once; an exception is a result too."""
        results: list[Any] = [None] * len(self.clients)

        def one(index: int) -> None:
            try:
                results[index] = do(index, self.clients[index])
            except AggregationError as error:
                results[index] = error

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(self.clients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@contextmanager
def rack(
    num_workers: int = 3,
    *,
    rates: FaultRates | None = None,
    natives: Any = (True, False),
    partial_s: float | None = None,
    **keys: Any,
) -> Iterator[Rack]:
    with ExitStack() as stack:
        yield Rack(stack, num_workers, rates=rates or FaultRates(), natives=natives, partial_s=partial_s, **keys)


BAD = FaultRates(loss=0.05, duplicate=0.05)


@pytest.mark.parametrize("rates", [FaultRates(), BAD], ids=["clean", "lossy"])
@pytest.mark.parametrize("natives", [(True,), (False,), (True, False)], ids=["C", "Python", "mixed"])
def test_floats_are_summed_within_the_bound(natives: tuple[bool, ...], rates: FaultRates) -> None:
    rng = np.random.default_rng(1)
    with rack(natives=natives, rates=rates) as bench:
        bench.everybody(lambda _, client: client.join())
        for round_ in range(3):
            values = rng.normal(size=(3, 3001)).astype(np.float32) * 0.7**round_
            sums = bench.everybody(lambda index, client, values=values: client.all_reduce("bucket", values[index]))
            bound = np.repeat(error_bound(bench.clients[0]._quantizer.used, 3), 64)[:3001]
            for found in sums:
                np.testing.assert_array_equal(found, sums[0])
                assert (np.abs(found - values.astype(np.float64).sum(axis=0)) <= bound + 1e-6).all()
        bench.everybody(lambda _, client: client.leave())
        repeated = [client._quantizer.num_repeated for client in bench.clients]
        assert [sum(client.slot_latencies) for client in bench.clients] == [4 * 47] * 3, "every chunk's use of its slot"
        assert repeated == [47] * 3  # the first reduction knows no exponents; the others predict them
        with bench.service.lock:
            assert bench.aggregator.counters.violations(bench.aggregator.in_flight) == []
        lost = sum(client.counters.timeouts + client.counters.fast_retransmissions for client in bench.clients)
        assert (lost > 0) or rates.loss == 0


@pytest.mark.parametrize("native", [True, False])
def test_partial_sums_are_scaled_up_and_the_same_for_whoever_comes_late(native: bool) -> None:
    with rack(3, natives=(native,), partial_s=0.5) as r:  # so far apart the contributions of the other two may come
        r.everybody(lambda _, client: client.join())
        values = np.random.default_rng(2).normal(size=(3, 64 * 4)).astype(np.float32)
        others_done = threading.Event()

        def reduce(index: int, client: Client) -> Any:
            if index == 2:
                others_done.wait(10)
            try:
                return client.all_reduce("gradient", values[index])
            finally:
                others_done.set()

        found = r.everybody(reduce)
        for one in found:
            np.testing.assert_allclose(one, 1.5 * (values[0] + values[1]), atol=1e-5)
            np.testing.assert_array_equal(one, found[0])
        assert [client.num_partial for client in r.clients] == [4, 4, 4]
        assert r.aggregator.counters.partial >= 4
        assert r.aggregator.counters.late >= 4
        assert r.aggregator.counters.violations(r.aggregator.in_flight) == []


@pytest.mark.parametrize("max_segments", [None, 1])
def test_messages_may_have_several_chunks(max_segments: int | None) -> None:
    with rack(2, natives=(True,), max_segments=max_segments) as bench:
        bench.everybody(lambda _, client: client.join())
        values = np.arange(2 * 300 * 64, dtype=np.int32).reshape(2, 300, 64)
        for _ in range(3):
            found = bench.everybody(lambda index, client: client.reduce(values[index], np.zeros(300, np.int8)))
            for one in found:
                np.testing.assert_array_equal(one.elements, values.sum(axis=0))
        with bench.service.lock:
            assert bench.aggregator.counters.bad == 0


class Played:
    """A test plays the aggregator of one worker."""

    def __init__(self, stack: ExitStack, **keys: Any) -> None:
        self.job = Job(workers=HOSTS[:1], num_elements=32, num_slots=4)
        self.socket = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.socket.bind(("127.0.0.9", 0))
        self.socket.settimeout(10)
        self.client = stack.enter_context(Client(self.job, 0, self.socket.getsockname(), local=(HOSTS[0], 0), **keys))
        self._seen: set[int] = set()
        joining = threading.Thread(target=self.client.join)
        joining.start()
        join = decode(self.socket.recv(2000))
        self._send(join)
        joining.join()

    def contributions(self, number: int) -> list[int]:
        """Those that are no repetitions."""
        found: list[int] = []
        while len(found) < number:
            packet = decode(self.socket.recv(2000))
            if packet.kind is Kind.DATA_32 and packet.chunk not in self._seen:  # a join may have been repeated, too
                found.append(packet.chunk)
                self._seen.add(packet.chunk)
        return found

    def answer(self, chunk: int) -> None:
        slot, version = self.job.place(chunk)
        elements = np.full(32, chunk, np.int32)
        self._send(Packet(Kind.DATA_32, 0, 0, chunk, slot=slot, version=version, elements=elements))

    @contextmanager
    def reducing(self, num_chunks: int) -> Iterator[list[Any]]:
        """The worker reduces meanwhile; its result is there at the end."""
        results: list[Any] = []
        zeros = np.zeros((num_chunks, 32), np.int32), np.zeros(num_chunks, np.int8)
        thread = threading.Thread(target=lambda: results.append(self.client.reduce(*zeros)))
        thread.start()
        yield results
        thread.join()

    def _send(self, packet: Packet) -> None:
        self.socket.sendto(packet.encode(), self.client._socket.getsockname())


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_each_slot_clocks_itself(native: bool) -> None:
    """A slot whose result is missing does not stop the others."""
    with ExitStack() as stack:
        played = Played(stack, use_native=native)
        with played.reducing(13) as results:
            assert played.contributions(4) == [0, 1, 2, 3]
            for chunk, next_ in ((1, 5), (5, 9), (2, 6), (0, 4), (4, 8), (8, 12)):
                played.answer(chunk)
                assert played.contributions(1) == [next_]
            for chunk in (12, 9, 6, 3):
                played.answer(chunk)
            assert sorted(played.contributions(2)) == [7, 10]
            for chunk in (10, 7):
                played.answer(chunk)
            assert played.contributions(1) == [11]
            played.answer(11)
        [result] = results
        np.testing.assert_array_equal(result.elements[:, 0], np.arange(13))


def test_what_a_result_waited_for_others_is_no_longer_path_in_c_either() -> None:
    """As in :class:`switch_agg.round_trip.RoundTripEstimator`, which simulations look at: a sample counts as two round
    trips at most, and as an eighth."""
    with ExitStack() as stack:
        played = Played(stack)
        carried = played.client._carried
        carried.timeout_s = 8.0  # only what is not repeated is a sample
        with played.reducing(4):
            for chunk in played.contributions(4):
                played.answer(chunk)
        path_s, variation_s, carried.timeout_s = carried.smoothed_s, carried.variation_s, 8.0
        with played.reducing(1):
            [late] = played.contributions(1)
            time.sleep(max(0.1, 4 * path_s))
            played.answer(late)
        assert MAX_ROUND_TRIPS == 2
        assert carried.smoothed_s == pytest.approx(9 / 8 * path_s)
        assert carried.variation_s == pytest.approx(3 / 4 * variation_s + 1 / 4 * path_s)


@pytest.mark.parametrize("kind", ["fixed", "aimd", "delay"])
@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_every_window_policy_gets_through_loss(kind: str, native: bool) -> None:
    policy = WindowPolicy.model_validate({"kind": kind})
    with rack(2, natives=(native,), rates=BAD, policy=policy) as bench:
        bench.everybody(lambda _, client: client.join())
        values = np.arange(2 * 100 * 64, dtype=np.int32).reshape(2, 100, 64)
        exponents = np.zeros(100, np.int8)
        for found in bench.everybody(lambda index, client: client.reduce(values[index], exponents)):
            np.testing.assert_array_equal(found.elements, values.sum(axis=0))
            assert (found.counts == 2).all()
        assert bench.clients[0].counters.results == 100


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_a_quarter_lost_each_way_does_not_make_the_aggregator_seem_gone(native: bool) -> None:
    with rack(4, natives=(native,), rates=FaultRates(loss=0.25)) as bench:
        bench.everybody(lambda _, client: client.join())
        values = np.arange(4 * 61 * 64, dtype=np.int32).reshape(4, 61, 64)
        for _ in range(2):
            for found in bench.everybody(lambda index, client: client.reduce(values[index], np.zeros(61, np.int8))):
                np.testing.assert_array_equal(found.elements, values.sum(axis=0))
        # How long round trips take is the machine's; how many of them a worker waits is not.
        for carried in (client._carried for client in bench.clients if native):
            spread_s = max(GRANULARITY_S, (MAX_ROUND_TRIPS - 1) * carried.smoothed_s)
            assert carried.timeout_s <= max(MIN_TIMEOUT_S, 1.001 * (carried.smoothed_s + spread_s))


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_a_sum_that_was_clipped_is_no_gradient(native: bool) -> None:
    """A foreign contribution as large as can be, under a worker's address."""
    with rack(2, natives=(native,)) as bench:
        bench.everybody(lambda _, client: client.join())

        def reduce(index: int, client: Client) -> Any:
            if index == 0:
                return client.all_reduce("gradient", np.full(64, 1.5, np.float32))
            # The gradient's first round finds its exponent, with nothing but zeros in it.
            return client.reduce(np.full((2, 64), 2**31 - 1, np.int32), np.zeros(2, np.int8))

        found = bench.everybody(reduce)
        assert isinstance(found[0], OverflowedError)
        assert found[1].saturated.tolist() == [False, True]


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_an_aggregator_that_never_answers_is_an_error_in_time(native: bool) -> None:
    with rack(2, natives=(native,), max_silence_s=0.4) as bench:
        bench.everybody(lambda _, client: client.join())
        begun_s = time.monotonic()
        with pytest.raises(AggregatorLostError, match="no result of chunk 0 for"):
            bench.clients[0].reduce(np.zeros((3, 64), np.int32), np.zeros(3, np.int8))
        assert time.monotonic() - begun_s < 5
        bench.service.close()
        with pytest.raises(AggregatorLostError):
            bench.clients[1].join(timeout_s=0.3)


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_a_reset_ends_the_epoch_and_all_join_again(native: bool) -> None:
    with rack(2, natives=(native,)) as bench:
        bench.everybody(lambda _, client: client.join())
        [first] = {client.epoch for client in bench.clients}

        def reset() -> None:
            with bench.service.lock:
                bench.aggregator.reset(0)

        threading.Timer(0.2, reset).start()
        with pytest.raises(EpochEndedError):  # nobody else contributes: it waits
            bench.clients[0].all_reduce("b", np.ones(64, np.float32))
        bench.everybody(lambda _, client: client.join())
        assert {client.epoch for client in bench.clients} == {(first + 1) % 2**32}
        sums = bench.everybody(lambda _, client: client.all_reduce("b", np.ones(64, np.float32)))
        assert all((found == 2).all() for found in sums)


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_cancelling_ends_a_wait(native: bool) -> None:
    with rack(2, natives=(native,)) as bench:
        bench.everybody(lambda _, client: client.join())
        threading.Timer(0.2, bench.clients[0].cancel).start()
        with pytest.raises(AggregationError, match="cancelled"):
            bench.clients[0].reduce(np.zeros((1, 64), np.int32), np.zeros(1, np.int8))
