"""Two ends of a UDP connection on a simulated network: every message arrives once, in order, and everything ends.

Each seed decides a whole world: the messages, the window policy, the pace, what is lost, doubled, corrupted, reordered.
"""

import random
from collections.abc import Callable

import pytest

from switch_agg.core import Address
from switch_agg.simulator import Network, Simulator, StuckError
from switch_agg.window import AimdWindow, FixedWindow, Window
from tests.over_all import over_all
from transports.channels._udp.connection import PROBED_PACE, WINDOW_PACE, Connection, Pace
from transports.channels._udp.native import Completions, Pacer
from transports.channels._udp.window import CompetingDelayWindow
from transports.channels._udp.wire import ASIDE_BYTES
from transports.channels.framing import HEADER_BYTES, Farewell

A: Address = ("a", 1)
B: Address = ("b", 2)
SEEDS = 600


class World:
    def __init__(
        self,
        seed: int,
        network: Network,
        *,
        packet_bytes: int | None = None,
        window: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        """The window is fixed where it is said, and the seed decides what is not said."""
        self.random = random.Random(seed)
        self.window, self.pace = window, pace
        self.packet_bytes = packet_bytes or self.random.choice([40, 100, 1448])
        self.numbers = {A: self.random.getrandbits(32), B: self.random.getrandbits(32)}
        self.ends = {A: self.connection(A, B), B: self.connection(B, A)}
        self.simulator = Simulator(self.ends, network, seed=seed)
        self.num_tokens = 0
        self.sent: dict[Address, list[bytes]] = {A: [], B: []}
        self.received: dict[Address, list[bytearray]] = {A: [], B: []}
        self.tokens: dict[Address, list[int]] = {A: [], B: []}
        self.completed: dict[Address, list[int]] = {A: [], B: []}

    def connection(self, local: Address, peer: Address) -> Connection:
        windows: list[Window] = [
            FixedWindow(self.random.randint(1, 200)),
            AimdWindow(4, 64),
            CompetingDelayWindow(4, 64),
        ]
        paces = [WINDOW_PACE, Pace.fixed(self.random.choice([1e6, 1e9])), PROBED_PACE]
        window, pace = self.random.choice(windows), self.random.choice(paces)
        return Connection(
            peer=peer,
            local=self.numbers[local],
            remote=self.numbers[peer],
            packet_bytes=self.packet_bytes,
            window=window if self.window is None else FixedWindow(self.window),
            pace=self.pace or pace,
            pacer=Pacer(),
            completions=Completions(),
            now_s=0.0,
        )

    def send(self, sender: Address, num_bytes: int) -> None:
        data = self.random.randbytes(num_bytes)
        self.sent[sender].append(data)
        self.num_tokens += 1
        self.ends[sender].post(self.frame(sender, len(self.sent[sender])), memoryview(data), self.num_tokens)

    def expect(self, receiver: Address) -> None:
        sender = B if receiver == A else A
        number = len(self.received[receiver])
        view = bytearray(len(self.sent[sender][number]))
        self.received[receiver].append(view)
        self.num_tokens += 1
        self.tokens[receiver].append(self.num_tokens)
        self.ends[receiver].expect(self.frame(sender, number + 1), memoryview(view), self.num_tokens)

    @staticmethod
    def frame(sender: Address, number: int) -> bytes:
        return f"{sender[0]}{number}".encode().ljust(HEADER_BYTES, b".")

    def run(self, watch: Callable[[], None] = lambda: None, *, limit_s: float = 3600.0) -> None:
        """Until everything sent has been received and acknowledged, receives being posted now and then; `watch` is
        called again and again."""

        def done() -> bool:
            watch()
            for end, peer in ((A, B), (B, A)):
                if len(self.received[end]) < len(self.sent[peer]) and self.random.random() < 0.05:
                    self.expect(end)
                    self.simulator.touch(end)
            return all(
                len(self.received[end]) == len(self.sent[peer])
                and not self.ends[end].expecting
                and self.ends[peer].delivered
                for end, peer in ((A, B), (B, A))
            )

        self.simulator.run(done, limit_s=limit_s)

    def check(self) -> None:
        for end, peer in ((A, B), (B, A)):
            assert [bytes(view) for view in self.received[end]] == self.sent[peer]
            self.completed[end] += self.ends[end].completions.take()
            arrived = [token for token in self.completed[end] if token in self.tokens[end]]
            assert arrived == self.tokens[end]
            total = sum(HEADER_BYTES + len(data) for data in self.sent[peer])
            assert self.ends[end].state.incoming.payload_bytes == total
            assert self.ends[peer].state.outgoing.payload_bytes == total


@pytest.mark.parametrize("shard", range(4))
def test_every_message_arrives_once_and_in_order(shard: int) -> None:
    for seed in range(shard, SEEDS, 4):
        chance = random.Random(seed)
        network = Network(
            delay_s=chance.choice([1e-5, 1e-3, 2e-2]),
            loss=chance.choice([0, 0.01, 0.1, 0.3]),
            duplicate=chance.choice([0, 0.2]),
            corrupt=chance.choice([0, 0.05]),
            reorder=chance.choice([0, 0.2]),
        )
        world = World(seed, network)
        for _ in range(chance.randint(1, 12)):
            world.send(chance.choice([A, B]), chance.choice([0, 1, 39, 1000, 5000]))
        try:
            world.run()
        except StuckError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        world.check()
        if network.corrupt == network.loss == network.reorder == 0:
            assert all(end.num_rejected == 0 for end in world.ends.values())


def test_what_nobody_awaits_is_put_aside_up_to_a_limit() -> None:
    world = World(1, Network(), packet_bytes=1448)
    for _ in range(5):
        world.send(A, ASIDE_BYTES // 2)
    world.simulator.run_for(2.0)
    assert world.ends[B].state.incoming.payload_bytes <= ASIDE_BYTES
    assert world.ends[B].state.incoming.payload_bytes > ASIDE_BYTES - world.packet_bytes
    world.run()
    world.check()


def test_nothing_is_sent_twice_on_a_network_without_faults() -> None:
    world = World(2, Network(delay_s=1e-3), packet_bytes=1448)
    for _ in range(20):
        world.send(A, 50_000)
        world.send(B, 100)
    world.run()
    world.check()
    assert all(end.state.outgoing.retransmitted_bytes == 0 for end in world.ends.values())


def test_a_peer_that_begins_anew_is_noticed() -> None:
    world = World(3, Network())
    world.send(A, 100)
    world.run()
    world.numbers[B] += 1
    world.simulator.restart(B, world.connection(B, A))
    assert not world.ends[A].restarted
    world.send(A, 100)
    world.simulator.touch(A)
    world.simulator.run(lambda: world.ends[A].restarted, limit_s=60.0)


@over_all("seed", range(20))
def test_who_leaves_is_heard_after_its_close_frame(seed: int) -> None:
    world = World(seed, Network(loss=0.3))
    for _ in range(3):
        world.send(A, 1000)
        world.sent[A].append(b"")  # without a token: it has a buffer of its own
        world.ends[A].post(world.frame(A, len(world.sent[A])), memoryview(b""), None)
    world.run()
    world.ends[A].leave(Farewell(7), world.simulator.now_s)
    world.simulator.touch(A)
    world.simulator.run(lambda: world.ends[A].leave_answered, limit_s=600.0)
    assert world.ends[B].farewell == Farewell(7)
    assert world.ends[B].peer_leaves


def test_who_leaves_in_the_middle_gives_up_what_is_not_delivered() -> None:
    world = World(5, Network(), packet_bytes=1448)
    world.ends[A].post(world.frame(A, 1), memoryview(b"kept"), None)
    world.ends[A].post(world.frame(A, 2), memoryview(bytes(10_000_000)), 1)
    world.simulator.run_for(0.01)
    world.ends[A].leave(Farewell(1, lost=5), world.simulator.now_s)
    world.simulator.touch(A)
    view = bytearray(4)
    world.ends[B].expect(world.frame(A, 1), memoryview(view), 9)
    world.simulator.run(lambda: world.ends[A].leave_answered, limit_s=60.0)
    assert view == b"kept"
    assert world.ends[B].farewell == Farewell(1, lost=5)
    assert world.ends[A].delivered


@over_all("seed", range(100))
def test_who_leaves_with_all_that_was_sent_to_it_leaves_nobody_waiting(seed: int) -> None:
    """At once, and the acknowledgements of the end are lost or overtaken by CLOSE."""
    world = World(seed, Network(loss=0.2, reorder=0.2))
    world.send(B, 200_000 if world.packet_bytes == 1448 else 5_000)
    world.expect(A)
    world.simulator.run(lambda: not world.ends[A].expecting)
    world.ends[A].leave(Farewell(1), world.simulator.now_s)
    world.simulator.touch(A)
    world.simulator.run(lambda: world.ends[B].farewell is not None)
    assert world.ends[B].first_pending is None
    assert world.ends[B].delivered
    world.simulator.run(lambda: world.ends[A].leave_answered)
    world.check()


def test_a_frame_that_differs_is_reported() -> None:
    world = World(6, Network())
    world.send(A, 10)
    world.ends[B].expect(world.frame(A, 9), memoryview(bytearray(3)), 1)
    world.simulator.run(lambda: world.ends[B].disagreement is not None, limit_s=10.0)
    assert world.ends[B].disagreement == (world.frame(A, 1), world.frame(A, 9))
    assert world.ends[B].completions.take() == []


def transfer_s(loss: float, num_bytes: int) -> float:
    world = World(7, Network(delay_s=1e-2, loss=loss), packet_bytes=1448, window=4096, pace=Pace.fixed(200e6))
    world.send(A, num_bytes)
    world.expect(B)
    world.simulator.run(lambda: not world.ends[B].expecting, limit_s=60.0)
    return world.simulator.now_s


def test_random_loss_does_not_slow_a_paced_sender() -> None:
    assert transfer_s(0.005, 5_000_000) < 1.25 * transfer_s(0.0, 5_000_000)


@pytest.mark.parametrize(
    ("loss", "delay_s", "pace", "least_share", "most_sent_again"),
    [
        (0.005, 10e-3, Pace.fixed(200e6), 0.95, 0.01),
        (0.0, 0.1e-3, Pace.fixed(200e6), 0.98, 0.0),
        (0.0, 0.1e-3, PROBED_PACE, 0.96, 0.06),
    ],
)
def test_a_paced_sender_fills_its_link(
    loss: float, delay_s: float, pace: Pace, least_share: float, most_sent_again: float
) -> None:
    """200 Mbit/s and a queue of 1 MB: the share of what payload can have of the link, and what travels twice."""
    network = Network(delay_s=delay_s, loss=loss, rate_bps=200e6)
    world = World(3, network, packet_bytes=1448, window=8192, pace=pace)
    num_bytes = 10_000_000
    for _ in range(20):
        world.send(A, num_bytes // 20)
        world.expect(B)
    world.run()
    world.check()
    bound_s = num_bytes * 8 / (200e6 * 1448 / 1514)
    assert bound_s / (world.simulator.now_s - 2 * delay_s) > least_share
    assert world.ends[A].state.outgoing.retransmitted_bytes <= most_sent_again * num_bytes


@pytest.mark.parametrize("stall_s", [1e-3, 3e-3, 6e-3])
@pytest.mark.parametrize("seed", [2, 4])
def test_hosts_that_wait_for_a_core_know_the_rate_all_the_same(stall_s: float, seed: int) -> None:
    """Acknowledgements that are read in lumps feigned up to 1.4 times the rate, and what a sender missed 0.2 times."""
    network = Network(delay_s=1e-4, rate_bps=500e6, stall_s=stall_s, between_stalls_s=0.02)
    world = World(seed, network, packet_bytes=1448, window=8192, pace=PROBED_PACE)
    for _ in range(12):
        for sender, receiver in ((A, B), (B, A)):
            world.send(sender, 1_000_000)
            world.expect(receiver)
    found_bps: list[float] = []

    def note() -> None:
        if world.simulator.now_s > 0.1:  # start-up is over
            found_bps.extend(end.bottleneck_bps for end in world.ends.values())

    world.run(note)
    world.check()
    assert min(found_bps) > 0.95 * 500e6
    assert max(found_bps) < 1.05 * 500e6
    assert all(
        end.state.outgoing.retransmitted_bytes < 0.005 * end.state.outgoing.payload_bytes for end in world.ends.values()
    )


def test_short_messages_now_and_then_do_not_pass_for_all_that_the_network_can() -> None:
    world = World(1, Network(delay_s=1e-4, rate_bps=1e9), packet_bytes=1448, window=8192, pace=PROBED_PACE)
    for _ in range(50):
        world.simulator.run_for(0.05)
        sent_s = world.simulator.now_s
        world.send(A, 1000)
        world.expect(B)
        world.simulator.touch(A)
        world.run()
        assert world.simulator.now_s - sent_s < 5e-3


def test_bytes_that_came_in_another_copy_do_not_stop_the_probes() -> None:
    """A window of one packet, full of a retransmission whose original has arrived after all."""
    for seed in range(200):
        network = Network(delay_s=1e-3, loss=0.3, reorder=0.2)
        world = World(seed, network, packet_bytes=100, window=1, pace=WINDOW_PACE)
        world.send(A, 2000)
        world.run(limit_s=600.0)
        world.check()
