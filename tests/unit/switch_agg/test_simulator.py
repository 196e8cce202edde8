from collections.abc import Iterable, Sequence

import pytest

from switch_agg.core import Address, Datagram
from switch_agg.simulator import Network, Simulator, StuckError

A: Address = ("a", 1)
B: Address = ("b", 1)


class Talker:
    """Says numbers and remembers what it heard, and when."""

    def __init__(self, peer: Address, count: int) -> None:
        self.outbox = [Datagram(peer, bytes([number])) for number in range(count)]
        self.heard: list[tuple[float, int]] = []

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        self.heard += [(now_s, datagram.data[0]) for datagram in datagrams]

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        outbox, self.outbox = self.outbox, []
        return outbox

    def deadline_s(self) -> float | None:
        return None

    def expire(self, now_s: float) -> None: ...


def talk(network: Network, seed: int = 1, count: int = 200) -> list[tuple[float, int]]:
    listener = Talker(A, 0)
    simulator = Simulator({A: Talker(B, count), B: listener}, network, seed=seed)
    simulator.run_for(10.0)
    assert simulator.now_s == 10.0
    return listener.heard


def test_a_good_network_keeps_everything_in_order() -> None:
    assert talk(Network(delay_s=0.5)) == [(0.5, number) for number in range(200)]


def test_faults_happen_as_often_as_requested_and_replay() -> None:
    heard = talk(Network(loss=0.2, duplicate=0.1, reorder=0.3))
    assert heard == talk(Network(loss=0.2, duplicate=0.1, reorder=0.3))
    assert heard != talk(Network(loss=0.2, duplicate=0.1, reorder=0.3), seed=2)
    numbers = [number for _, number in heard]
    assert 130 < len(set(numbers)) < 185
    assert len(numbers) > len(set(numbers))
    assert numbers != sorted(numbers)


def test_corruption_turns_bits() -> None:
    assert [number for _, number in talk(Network(corrupt=1.0), count=8)] != list(range(8))


def test_a_run_that_cannot_end_says_so() -> None:
    simulator = Simulator({A: Talker(B, 1), B: Talker(A, 0)}, Network(), seed=1)
    with pytest.raises(StuckError, match="not finished"):
        simulator.run(lambda: False)


def test_a_link_has_its_rate_in_each_direction_and_to_each_peer() -> None:
    """Ethernet, IP, UDP and one byte are 43 bytes."""
    heard: dict[Address, Talker] = {peer: Talker(A, 0) for peer in (B, ("c", 1))}
    talker = Talker(B, 3)
    talker.outbox += Talker(("c", 1), 3).outbox
    simulator = Simulator({A: talker, **heard}, Network(delay_s=0.5, rate_bps=43 * 8), seed=1)
    simulator.run_for(10.0)
    for listener in heard.values():
        assert listener.heard == [(1.5, 0), (2.5, 1), (3.5, 2)]


def test_a_host_that_is_kept_away_finds_at_once_what_came_meanwhile() -> None:
    def listen(stall_s: float) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []

        class Listener(Talker):
            def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
                found.extend((now_s, datagram.age_s) for datagram in datagrams)

        network = Network(delay_s=0.0, rate_bps=1e4, stall_s=stall_s, between_stalls_s=0.5)
        Simulator({A: Talker(B, 200), B: Listener(A, 0)}, network, seed=1).run_for(60.0)
        return found

    steady, stalled = listen(0.0), listen(0.5)
    assert len(steady) == len(stalled) == 200
    assert {age_s for _, age_s in steady} == {0.0}
    assert len({now_s for now_s, _ in stalled}) < 150
    arrived = sorted(now_s - age_s for now_s, age_s in stalled)
    assert arrived == pytest.approx([now_s for now_s, _ in steady])
