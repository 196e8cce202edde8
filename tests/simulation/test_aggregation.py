"""Workers and aggregators on a simulated network: sums are exact, everything ends, whatever the network does.

Each seed decides a whole world: how many workers, how much is lost, doubled and reordered. A failing seed replays.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from switch_agg.aggregator import Aggregator
from switch_agg.core import Address, Core, Datagram
from switch_agg.epochs import Epochs
from switch_agg.errors import AggregatorLostError, EpochEndedError
from switch_agg.job import Job
from switch_agg.simulator import ETHERNET_IP_UDP_BYTES, Network, Simulator, StuckError
from switch_agg.window import AimdWindow, DelayWindow, FixedWindow, Window
from switch_agg.wire import HEADER, Kind, Packet
from switch_agg.worker import MAX_SILENCE_S, Worker

SWITCH: Address = ("switch", 0xBEE0)
NUM_ELEMENTS = 32
SEEDS = 1500


def host(index: int) -> Address:
    return (f"w{index}", 4000)


class World:
    """Some workers, one aggregator, one network."""

    def __init__(
        self,
        seed: int,
        *,
        num_workers: int,
        num_slots: int,
        network: Network,
        aggregator: Callable[..., Aggregator] = Aggregator,
        windows: Sequence[Window | None] | None = None,
        **job: Any,
    ) -> None:
        self.windows = windows
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.job = Job(
            workers=tuple(host(index)[0] for index in range(num_workers)),
            num_elements=NUM_ELEMENTS,
            num_slots=num_slots,
            **job,
        )
        self.aggregator = aggregator(generation=seed, epochs=Epochs(first=self.random.getrandbits(32)))
        self.aggregator.configure(self.job)
        self.workers = [self.worker(index) for index in range(num_workers)]
        cores: dict[Address, Core] = {
            SWITCH: self.aggregator,
            **{host(index): worker for index, worker in enumerate(self.workers)},
        }
        self.simulator = Simulator(cores, network, seed=seed)

    def worker(self, index: int) -> Worker:
        window = self.random.choice(
            self.windows
            or [None, FixedWindow(self.random.randint(1, 16)), AimdWindow(4, 64), DelayWindow(4, 64, target_s=1e-3)]
        )
        return Worker(
            self.job,
            index,
            SWITCH,
            incarnation=self.random.getrandbits(32),
            window=window,
            max_silence_s=600.0,  # a network that loses 40 % is slow, not gone
        )

    def join(self) -> None:
        for worker in self.workers:
            worker.join()
        self.simulator.run(lambda: all(worker.joined for worker in self.workers))

    def begin(self, num_chunks: int) -> np.ndarray:
        """Start a reduction everywhere, the workers one after the other, and return its sums."""
        shape = (len(self.workers), num_chunks, NUM_ELEMENTS)
        values = self.numbers.integers(-(2**24), 2**24, shape, dtype=np.int32)
        for index, worker in enumerate(self.workers):
            worker.reduce(values[index], np.full(num_chunks, index - 5, np.int8))
            self.simulator.touch(host(index))
        return values.sum(axis=0, dtype=np.int64)

    def reduce(self, num_chunks: int) -> None:
        expected = self.begin(num_chunks)
        self.simulator.run(lambda: all(worker.finished for worker in self.workers))
        for worker in self.workers:
            assert worker.failure is None
            np.testing.assert_array_equal(worker.result.elements, expected)
            assert set(worker.result.exponents.tolist()) <= {len(self.workers) - 6}
            assert set(worker.result.counts.tolist()) <= {len(self.workers)}
            assert not worker.result.saturated.any()
        assert self.aggregator.counters.violations(self.aggregator.in_flight) == []

    def leave(self) -> None:
        for worker in self.workers:
            worker.leave()
        for index in range(len(self.workers)):
            self.simulator.touch(host(index))
        self.simulator.run(lambda: all(worker.left for worker in self.workers))


def any_network(rng: random.Random) -> Network:
    return Network(
        loss=rng.choice([0.0, 0.01, 0.1, rng.uniform(0, 0.4)]),
        duplicate=rng.choice([0.0, 0.0, 0.1, 0.5]),
        reorder=rng.choice([0.0, 0.1, 0.5]),
        hold_up_s=rng.choice([1e-3, 1e-2, 0.2]),
    )


def play(seed: int, aggregator: Callable[..., Aggregator] = Aggregator) -> World:
    """One world from its seed, through several reductions."""
    rng = random.Random(seed)
    world = World(
        seed,
        num_workers=rng.choice([1, 2, 2, 3, 4, 8] if seed % 50 else [rng.randint(5, 31), 32]),
        num_slots=rng.choice([1, 2, 4]),
        network=any_network(rng),
        aggregator=aggregator,
        first_slot=rng.choice([0, 7]),
        number=rng.randrange(16),
    )
    world.join()
    for _ in range(rng.randint(1, 3)):
        world.reduce(rng.choice([1, 3, 8, 13]))
    world.leave()
    # Two versions are what lets nobody wait for anybody's acknowledgement.
    assert world.aggregator.counters.held == 0
    return world


@pytest.mark.parametrize("block", range(10))
def test_sums_are_exact_whatever_the_network_does(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            world = play(seed)
        except (AssertionError, StuckError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counters = world.aggregator.counters
        assert counters.bad == 0
        assert counters.fresh == len(world.workers) * counters.done


class WithoutGuard(Aggregator):
    """Takes what is older than the slot's chunk for new, as p4app-switchML would."""

    @staticmethod
    def _is_newer(chunk: int, than: int) -> bool:
        return chunk != than


class WithoutBitmap(Aggregator):
    """Adds repeated contributions again."""

    @staticmethod
    def _has_contributed(version: Any, worker: int) -> bool:
        return version.result is not None and Aggregator._has_contributed(version, worker)


class WithoutVersions(Aggregator):
    """One half of each slot: the next chunk cannot begin while some worker may not have the result before."""

    def _contribute(self, state: Any, worker: int, packet: Packet, now_s: float) -> None:
        super()._contribute(state, worker, packet._replace(version=0), now_s)


@pytest.mark.parametrize("mutant", [WithoutGuard, WithoutBitmap, WithoutVersions])
def test_the_simulation_would_notice(mutant: type[Aggregator]) -> None:
    def fails(seed: int) -> bool:
        try:
            play(seed, mutant)
        except (AssertionError, StuckError):
            return True
        return False

    assert any(fails(seed) for seed in range(60))


def test_chunk_numbers_wrap() -> None:
    world = World(5, num_workers=3, num_slots=4, network=Network(loss=0.1, reorder=0.2))
    world.join()
    for worker in world.workers:
        worker._next_chunk = 0x100000000 - 9
    for _ in range(3):
        world.reduce(8)
    assert world.workers[0]._next_chunk == 15


def test_a_restarted_worker_ends_the_epoch_and_the_job_goes_on() -> None:
    for seed in range(40):
        world = World(seed, num_workers=3, num_slots=2, network=any_network(random.Random(seed)))
        world.join()
        world.reduce(4)
        world.begin(6)
        world.simulator.run_for(world.random.uniform(0, 0.01))
        world.workers[1] = world.worker(1)
        world.workers[1].join()
        world.simulator.restart(host(1), world.workers[1])

        def agree(world: World = world) -> bool:
            """Whoever learns that the epoch has ended joins the next one."""
            for index, worker in enumerate(world.workers):
                if worker.failure is not None:
                    assert isinstance(worker.failure, EpochEndedError)
                    worker.join()
                    world.simulator.touch(host(index))
            return all(worker.joined for worker in world.workers)

        # A worker that had finished notices with its next chunk; here all begin anew.
        world.simulator.run(lambda world=world: world.workers[1].joined)
        for index in (0, 2):
            world.workers[index].join()
            world.simulator.touch(host(index))
        world.simulator.run(agree)
        assert len({worker.epoch for worker in world.workers}) == 1
        world.reduce(5)


def test_a_restarted_aggregator_is_noticed() -> None:
    world = World(9, num_workers=2, num_slots=2, network=Network())
    world.join()
    world.reduce(3)
    world.begin(40)
    aggregator = Aggregator(generation=4711, epochs=Epochs(first=4711))
    aggregator.configure(world.job)
    world.simulator.restart(SWITCH, aggregator)
    world.simulator.run(lambda: all(worker.failure is not None for worker in world.workers))
    assert all(isinstance(worker.failure, EpochEndedError) for worker in world.workers)


def test_an_aggregator_that_is_gone_is_reported_in_time() -> None:
    class Dead:
        def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None: ...
        def transmit(self, now_s: float) -> Sequence[Datagram]:
            return ()

        def deadline_s(self) -> float | None:
            return None

        def expire(self, now_s: float) -> None: ...

    world = World(3, num_workers=2, num_slots=2, network=Network())
    world.join()
    for worker in world.workers:
        worker._max_silence_s = 5.0
    world.begin(10)
    world.simulator.restart(SWITCH, Dead())
    world.simulator.run(lambda: all(worker.failure is not None for worker in world.workers))
    assert all(isinstance(worker.failure, AggregatorLostError) for worker in world.workers)
    assert world.simulator.now_s < 8


def test_corrupted_datagrams_disturb_nothing_when_the_checksum_drops_them() -> None:
    # A turned bit inside the elements is what UDP's checksum is for; everything else the aggregator must survive.
    for seed in range(30):
        world = World(seed, num_workers=3, num_slots=2, network=Network(corrupt=0.2))
        for worker in world.workers:
            worker.join()
        try:
            world.simulator.run(lambda world=world: all(worker.joined for worker in world.workers))
            world.begin(6)
            world.simulator.run(
                lambda world=world: all(worker.finished or worker.failure for worker in world.workers), limit_s=2000
            )
        except StuckError:
            pass  # an identity that a corrupted number broke; what counts is that nothing raised
        assert world.aggregator.counters.violations(world.aggregator.in_flight) == []


def leaf_job(leaf: int) -> Job:
    return Job(
        workers=tuple(host(2 * leaf + index)[0] for index in range(2)),
        num_elements=NUM_ELEMENTS,
        num_slots=4,
        parent="root",
        parent_index=leaf,
    )


def tree(seed: int, network: Network) -> tuple[Simulator, list[Worker], Aggregator]:
    """Two aggregators with two workers each, under a root."""
    root = Aggregator(generation=seed, epochs=Epochs(first=seed << 20))
    root.configure(Job(workers=("leaf0", "leaf1"), num_elements=NUM_ELEMENTS, num_slots=4))
    cores: dict[Address, Any] = {("root", 0xBEE0): root}
    workers = []
    for leaf in range(2):
        job = leaf_job(leaf)
        aggregator = Aggregator(generation=seed + leaf + 1, epochs=Epochs(first=seed << 21))
        aggregator.configure(job)
        cores[f"leaf{leaf}", 0xBEE0] = aggregator
        for index in range(2):
            worker = Worker(job, index, (f"leaf{leaf}", 0xBEE0), incarnation=seed * 64 + index, max_silence_s=600)
            workers.append(worker)
            cores[host(2 * leaf + index)] = worker
    return Simulator(cores, network, seed=seed), workers, root


@pytest.mark.parametrize("restarts", [False, True], ids=["undisturbed", "a leaf restarts"])
def test_a_tree_of_aggregators_adds_everybody_once(restarts: bool) -> None:
    for seed in range(100):
        simulator, workers, root = tree(seed, any_network(random.Random(seed)))

        def settle(simulator: Simulator = simulator, workers: list[Worker] = workers) -> None:
            def all_joined() -> bool:
                for index, worker in enumerate(workers):
                    if worker.failure is not None:
                        worker.join()
                        simulator.touch(host(index))
                return all(worker.joined for worker in workers)

            simulator.run(all_joined)

        for worker in workers:
            worker.join()
        settle()
        values = np.random.default_rng(seed).integers(-(2**20), 2**20, (4, 9, NUM_ELEMENTS), dtype=np.int32)

        def again(
            simulator: Simulator = simulator, workers: list[Worker] = workers, values: np.ndarray = values
        ) -> bool:
            # A leaf that the root does not know yet begins another epoch: then everybody begins again, also those who
            # have finished in the old one and have not heard of the new one; this is how they hear of it.
            if any(worker.failure is not None for worker in workers):
                settle()
                for index, worker in enumerate(workers):
                    if worker.finished:
                        worker.reduce(values[index], np.zeros(9, np.int8))
                        simulator.touch(host(index))
            return all(worker.finished and worker.failure is None for worker in workers)

        for index, worker in enumerate(workers):
            worker.reduce(values[index], np.zeros(9, np.int8))
            simulator.touch(host(index))
        if restarts:
            simulator.run_for(random.Random(seed).uniform(0, 0.02))
            fresh = Aggregator(generation=seed + 1000, epochs=Epochs(first=seed << 22))
            fresh.configure(leaf_job(0))
            simulator.restart(("leaf0", 0xBEE0), fresh)
        simulator.run(again)
        for worker in workers:
            np.testing.assert_array_equal(worker.result.elements, values.sum(axis=0, dtype=np.int64))
        assert root.counters.violations(root.in_flight) == []


def test_a_straggler_gets_the_partial_sum_that_the_others_got() -> None:
    world = World(1, num_workers=3, num_slots=2, network=Network(), straggler_timeout_s=0.02)
    world.join()
    values = world.numbers.integers(-(2**24), 2**24, (3, 10, NUM_ELEMENTS), dtype=np.int32)
    for index in (0, 1):
        world.workers[index].reduce(values[index], np.zeros(10, np.int8))
        world.simulator.touch(host(index))
    # The pool bounds the lead: nobody goes on until the straggler has contributed to what its slots hold.
    world.simulator.run_for(0.5)
    assert not world.workers[0].finished
    world.workers[2].reduce(values[2], np.zeros(10, np.int8))
    world.simulator.touch(host(2))
    world.simulator.run(lambda: all(worker.finished for worker in world.workers))
    counts = world.workers[0].result.counts
    assert counts[0] == 2
    assert counts[-1] == 3
    for worker in world.workers:
        np.testing.assert_array_equal(worker.result.counts, counts)
        np.testing.assert_array_equal(worker.result.elements, world.workers[0].result.elements)
    for chunk, count in enumerate(counts):
        sums = [values[list(who), chunk].sum(axis=0) for who in itertools.combinations(range(3), count)]
        assert any((world.workers[0].result.elements[chunk] == each).all() for each in sums)
    assert world.aggregator.counters.partial == int((counts < 3).sum())
    assert world.aggregator.counters.violations(world.aggregator.in_flight) == []


def test_partial_sums_are_everybodys_whatever_the_network_does() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        timeout_s = rng.choice([1e-3, 0.02])
        world = World(
            seed,
            num_workers=rng.choice([2, 3, 5]),
            num_slots=rng.choice([1, 2, 4]),
            network=any_network(rng),
            straggler_timeout_s=timeout_s,
        )
        world.join()
        for _ in range(2):
            world.begin(rng.choice([3, 13]))
            world.simulator.run(lambda world=world: all(worker.finished for worker in world.workers))
            for worker in world.workers:
                assert worker.failure is None, f"seed {seed}: {worker.failure}"
                np.testing.assert_array_equal(worker.result.counts, world.workers[0].result.counts)
                np.testing.assert_array_equal(worker.result.elements, world.workers[0].result.elements)
        assert world.aggregator.counters.violations(world.aggregator.in_flight) == []


@pytest.mark.parametrize("num_slots", [32, 128])
def test_a_lost_chunk_holds_up_its_slot_alone(num_slots: int) -> None:
    """At 1 % on each way of 4 workers 7.7 % of the chunks come a round trip later, and all workers repeat them."""

    def taken_s(loss: float) -> float:
        rate_bps = 100e6 * (ETHERNET_IP_UDP_BYTES + HEADER.size + 4 * NUM_ELEMENTS) / 1080  # as many frames a second
        network = Network(delay_s=5e-5, loss=loss, rate_bps=rate_bps)
        world = World(1, num_workers=4, num_slots=num_slots, network=network, windows=(None,))
        world.join()
        begun_s = world.simulator.now_s
        world.reduce(2000)
        return world.simulator.now_s - begun_s

    assert taken_s(0.01) < 1.13 * taken_s(0.0)


@pytest.mark.parametrize("delay_s", [5e-5, 5e-3])
def test_a_quarter_lost_each_way_costs_seconds_not_the_aggregator(delay_s: float) -> None:
    """Four workers wait for each other's repetitions: none may take that for a longer path, and wait longer itself."""
    for seed in range(10):
        network = Network(delay_s=delay_s, loss=0.25, rate_bps=100e6)
        world = World(seed, num_workers=4, num_slots=128, network=network, windows=(None,))
        world.join()
        for worker in world.workers:
            worker._max_silence_s = MAX_SILENCE_S
        begun_s = world.simulator.now_s
        world.reduce(61)
        assert world.simulator.now_s - begun_s < MAX_SILENCE_S


def test_whoever_begins_last_makes_nobody_repeat_a_whole_window_for_nothing() -> None:
    network = Network(delay_s=5e-5, rate_bps=4e6)
    world = World(1, num_workers=3, num_slots=32, network=network, windows=(None,))
    world.join()
    world.reduce(200)
    values = world.numbers.integers(-(2**24), 2**24, (3, 400, NUM_ELEMENTS), dtype=np.int32)
    for index, worker in enumerate(world.workers):
        if index == 2:
            world.simulator.run_for(0.3)
        worker.reduce(values[index], np.zeros(400, np.int8))
        world.simulator.touch(host(index))
    world.simulator.run(lambda: all(worker.finished for worker in world.workers))
    assert sum(worker.counters.sent for worker in world.workers) < 1.05 * 3 * 600


def test_a_worker_of_another_host_contributes_nothing() -> None:
    world = World(2, num_workers=2, num_slots=2, network=Network())
    world.join()
    forged = Packet(Kind.DATA_32, 0, world.aggregator.membership(0)[0], 0, elements=np.ones(NUM_ELEMENTS, np.int32))
    world.aggregator.receive([Datagram(("mallory", 4000), forged.encode())], 0.0)
    assert world.aggregator.counters.bad_worker == 1
    world.reduce(3)
