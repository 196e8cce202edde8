"""Datagrams that come late: over jobs that are configured again, restarts at both ends and resets no sum is wrong.

Each seed decides a whole history. What holds a sum to account is the record of who contributed what to which reduction
of which epoch: a worker that finishes one must have the sum of exactly those. `make test-seeds` plays the campaign.
"""

import os
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest

from switch_agg.aggregator import Aggregator
from switch_agg.client import Client
from switch_agg.core import Address, Core, Datagram
from switch_agg.epochs import Epochs
from switch_agg.job import Job
from switch_agg.simulator import Network, Simulator, StuckError
from switch_agg.wire import Kind, Packet, decode
from switch_agg.worker import Worker

SWITCH: Final[Address] = ("switch", 0xBEE0)
NUM_ELEMENTS: Final = 32
SEEDS: Final = int(os.environ.get("EPOCH_SEEDS", "300"))
NUM_BLOCKS: Final = 10


def host(index: int) -> Address:
    return (f"w{index}", 4000)


@dataclass
class Member:
    """One worker's process, which reduces again and again."""

    worker: Worker
    num_done: int = 0
    """In this epoch."""
    busy: bool = False
    total_done: int = 0


@dataclass
class History:
    """Workers that go on whatever happens, and the sums they must get."""

    seed: int
    make: Callable[..., Aggregator] = Aggregator
    make_worker: Callable[..., Worker] = Worker
    members: list[Member] = field(default_factory=list)
    contributed: dict[tuple[int, int], dict[int, np.ndarray]] = field(default_factory=dict)
    """By epoch and its reduction, by worker: the last values of that name."""
    num_ambiguous: int = 0
    """Contributions of a worker to a reduction of an epoch that it had contributed to before."""
    num_checked: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        rng = self.random
        self.job = Job(
            number=rng.randrange(16),
            workers=tuple(host(index)[0] for index in range(rng.choice([2, 2, 3, 4]))),
            num_elements=NUM_ELEMENTS,
            num_slots=rng.choice([1, 2, 4]),
            first_slot=rng.choice([0, 3]),
        )
        self.epochs = Epochs(first=rng.getrandbits(32))
        self.aggregator = self.started_aggregator()
        cores: dict[Address, Core] = {SWITCH: self.aggregator}
        for index in range(self.job.num_workers):
            self.members.append(Member(self.started_worker(index)))
            cores[host(index)] = self.members[index].worker
        network = Network(
            loss=rng.choice([0.0, 0.02, 0.2]),
            duplicate=rng.choice([0.1, 0.5]),
            reorder=rng.choice([0.1, 0.5]),
            hold_up_s=rng.choice([2e-3, 2e-2, 0.2]),
        )
        self.simulator = Simulator(cores, network, seed=self.seed)

    # -- processes ----------------------------------------------------------------------------------------------------

    def started_aggregator(self) -> Aggregator:
        aggregator = self.make(generation=self.random.getrandbits(32), epochs=self.epochs)
        aggregator.configure(self.job)
        return aggregator

    def started_worker(self, index: int) -> Worker:
        worker = self.make_worker(self.job, index, SWITCH, incarnation=self.random.getrandbits(32), max_silence_s=600.0)
        worker.join()
        return worker

    def restart_worker(self, index: int) -> None:
        self.members[index] = Member(self.started_worker(index))
        self.simulator.restart(host(index), self.members[index].worker)

    def restart_aggregator(self) -> None:
        if self.random.random() < 0.5:  # it has forgotten where the last one stopped
            self.epochs = Epochs(first=self.random.getrandbits(32))
        self.aggregator = self.started_aggregator()
        self.simulator.restart(SWITCH, self.aggregator)

    def configure_again(self) -> None:
        self.aggregator.remove(self.job.number)
        self.aggregator.configure(self.job)

    def everybody_new(self) -> None:
        for index in range(self.job.num_workers):
            self.restart_worker(index)

    def reset(self, times: int) -> None:
        for _ in range(times):
            self.aggregator.reset(self.job.number)
        self.simulator.touch(SWITCH)

    def stray(self) -> None:
        """A datagram that is nobody's: of any kind and epoch, from any port of a worker's host; and to a worker."""
        rng = self.random
        index = rng.randrange(self.job.num_workers)
        now = self.aggregator.membership(self.job.number)[0]
        chunk = rng.randrange(4)
        slot, version = self.job.place(chunk)
        elements = np.full(NUM_ELEMENTS, 7, np.int32)
        data = Packet(Kind.DATA_32, self.job.number, now, chunk, slot=slot, version=version, elements=elements)
        control = Packet(Kind.PROBE, self.job.number, rng.choice([now, now - 1, rng.getrandbits(32)]) % 2**32, chunk)
        up = [
            data,
            control,
            control._replace(kind=Kind.RESET),
            control._replace(kind=Kind.LEAVE),
            control._replace(kind=Kind.JOIN, slot=(index + 1) % self.job.num_workers),
        ]
        port = rng.choice([0, 1, 3999, 0xBEE0, 65535])
        self.aggregator.receive([Datagram((host(index)[0], port), rng.choice(up).encode())], self.simulator.now_s)
        result = data._replace(epoch=self.members[index].worker.epoch)
        peer = rng.choice([("switch", 0xBEE1), ("mallory", 0xBEE0)])
        self.members[index].worker.receive([Datagram(peer, result.encode())], self.simulator.now_s)
        self.simulator.touch(SWITCH)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Whoever is free begins its next reduction; whose epoch has ended joins again."""
        for index, member in enumerate(self.members):
            worker = member.worker
            if worker.failure is not None:
                worker.join()
                member.busy, member.num_done = False, 0
            elif member.busy and worker.finished:
                self.check(index)
            elif worker.joined and not member.busy:
                self.begin(index)
            else:
                continue
            self.simulator.touch(host(index))

    def begin(self, index: int) -> None:
        member = self.members[index]
        key = (member.worker.epoch, member.num_done)
        num_chunks = 1 + random.Random(f"{key}").randrange(6)
        values = self.numbers.integers(-(2**24), 2**24, (num_chunks, NUM_ELEMENTS), dtype=np.int32)
        others = self.contributed.setdefault(key, {})
        self.num_ambiguous += index in others
        others[index] = values
        member.worker.reduce(values, np.zeros(num_chunks, np.int8))
        member.busy = True

    def check(self, index: int) -> None:
        member = self.members[index]
        found = self.contributed[member.worker.epoch, member.num_done]
        assert len(found) == self.job.num_workers, "a sum without everybody's contribution"
        expected = np.sum(list(found.values()), axis=0, dtype=np.int64)
        np.testing.assert_array_equal(member.worker.result.elements, expected)
        self.num_checked += 1
        member.num_done, member.busy = member.num_done + 1, False
        member.total_done += 1

    def resume(self, reductions: int) -> None:
        """Until everybody has finished so many more."""
        wanted = [member.total_done + reductions for member in self.members]

        def done() -> bool:
            self.drive()
            return all(member.total_done >= want for member, want in zip(self.members, wanted, strict=True))

        self.simulator.run(done)

    def play(self) -> None:
        self.resume(self.random.randint(1, 3))
        for _ in range(self.random.randint(4, 10)):
            self.happen()
            if self.random.random() < 0.3:
                self.simulator.run_for(self.random.expovariate(100))
                continue  # the next thing happens while everybody is in the middle of something
            self.resume(self.random.randint(1, 3))
        self.resume(2)
        assert self.aggregator.counters.violations(self.aggregator.in_flight) == []

    def happen(self) -> None:
        match self.random.randrange(8):
            case 0:
                self.reset(self.random.choice([1, 2, 15, 16, 32]))
            case 1:
                self.configure_again()
            case 2:
                self.configure_again()
                self.everybody_new()
            case 3:
                self.restart_aggregator()
            case 4:
                self.restart_aggregator()
                self.everybody_new()
            case 5:
                self.restart_worker(self.random.randrange(self.job.num_workers))
            case 6:
                for member in self.members:  # as after an aggregator that seemed lost: no epoch was announced
                    member.worker.join()
                    member.busy, member.num_done = False, 0
            case _:
                for _ in range(self.random.randint(1, 8)):
                    self.stray()


@pytest.mark.parametrize("block", range(NUM_BLOCKS))
def test_no_sum_is_wrong_whatever_comes_late(block: int) -> None:
    for seed in range(block * SEEDS // NUM_BLOCKS, (block + 1) * SEEDS // NUM_BLOCKS):
        history = History(seed)
        try:
            history.play()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert history.num_ambiguous == 0, f"seed {seed}"
        assert history.num_checked >= 3 * history.job.num_workers


class EpochsFromZero(Aggregator):
    """Each job's epochs count from 0, modulo 16, as those of the first format did."""

    def _next_epoch(self, previous: int | None) -> int:
        return 0 if previous is None else (previous + 1) % 16


class WithoutPorts(Aggregator):
    """Takes what comes from any port of a worker's host for the worker's."""

    @staticmethod
    def _has_joined(state: Any, worker: int, port: int) -> bool:
        return worker in state.joins


class Rejoining(Worker):
    """Begins again at chunk 0 in the epoch that it was in."""

    def _on_joined(self, packet: Packet) -> None:
        self._generation = None
        super()._on_joined(packet)


@pytest.mark.parametrize(
    ("kinds", "num_seeds"),
    [((EpochsFromZero, Worker), 40), ((WithoutPorts, Worker), 40), ((Aggregator, Rejoining), 20)],
    ids=["epochs from 0", "any port", "joins the same epoch again"],
)
def test_the_simulation_would_notice(kinds: tuple[type[Aggregator], type[Worker]], num_seeds: int) -> None:
    def wrong(seed: int) -> bool:
        try:
            History(seed, *kinds).play()
        except AssertionError as error:
            return "Arrays are not equal" in str(error) or "without everybody" in str(error)
        except StuckError:
            pass  # that is noticed, too, and is not what this test is about
        return False

    assert any(wrong(seed) for seed in range(num_seeds))


def joined_client(stack: ExitStack, played: socket.socket, job: Job, epoch: int, *, native: bool) -> Client:
    """Whose aggregator is a socket of the test's; the answer to its JOIN goes past the network."""
    address: Address = played.getsockname()
    keys: dict[str, Any] = {"local": ("127.0.0.1", 0), "use_native": native, "min_timeout_s": 0.5}
    client = stack.enter_context(Client(job, 0, address, **keys))
    client._core.join()
    [requested] = client._core.transmit(0.0)
    answer = decode(requested.data)._replace(epoch=epoch, slot=77)
    client._core.receive([Datagram(address, answer.encode())], 0.0)
    assert client._core.joined
    return client


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_a_worker_takes_results_of_its_own_epoch_alone(native: bool) -> None:
    """On loopback, with all that will come already in its socket: late results, late RESETs, what others sent."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        job = Job(number=rng.randrange(16), workers=("a", "b"), num_elements=NUM_ELEMENTS, num_slots=8)
        epoch, num_chunks = rng.getrandbits(32), rng.randint(1, 8)
        with ExitStack() as stack:
            played = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            played.bind(("127.0.0.1", 0))
            client = joined_client(stack, played, job, epoch, native=native)

            def result(chunk: int, value: int, epoch: int = epoch, job: Job = job, **changes: Any) -> bytes:
                slot, version = job.place(chunk)
                elements = np.full(NUM_ELEMENTS, value, np.int32)
                packet = Packet(Kind.DATA_32, job.number, epoch, chunk, slot=slot, version=version, elements=elements)
                return packet._replace(**changes).encode()

            def late(rng: random.Random = rng, epoch: int = epoch, job: Job = job) -> bytes:
                chunk = rng.randrange(8)
                other = (epoch - rng.choice([1, 2, 16, 32, 256, 1 << 16, 1 << 30])) % 2**32
                reset = Packet(Kind.RESET, job.number, other, chunk, slot=77)
                return rng.choice(
                    [
                        result(chunk, -1, other),
                        result(chunk, -1, other, kind=Kind.SATURATED),
                        result(chunk, -1, job=job.model_copy(update={"number": (job.number + 1) % 16})),
                        result(chunk, -1)[:-1],
                        reset.encode(),
                        reset._replace(kind=Kind.JOIN).encode(),
                    ]
                )

            coming = [result(chunk, 10 + chunk) for chunk in range(num_chunks)]
            rng.shuffle(coming)
            for data in coming:
                for each in [*(late() for _ in range(rng.randrange(4))), data]:
                    played.sendto(each, client._socket.getsockname())
            found = client.reduce(np.ones((num_chunks, NUM_ELEMENTS), np.int32), np.zeros(num_chunks, np.int8))
            assert found.elements[:, 0].tolist() == [10 + chunk for chunk in range(num_chunks)], f"seed {seed}"
