"""Windows on a fluid link: 10 ms of round-trip time, 10 000 packets a second, one bandwidth-delay product of queue."""

from collections.abc import Sequence

from switch_agg.window import AimdWindow, DelayWindow
from transports.channels._udp.window import CompetingDelayWindow

BASE_S = 10e-3
RATE = 10_000.0
QUEUE = BASE_S * RATE


def rounds(windows: Sequence[DelayWindow | AimdWindow], number: int, *, begin_s: float = 0.0) -> list[float]:
    """The round trip of each of so many rounds."""
    now_s, seen_s = begin_s, []
    for _ in range(number):
        under_way = sum(window.size for window in windows)
        round_trip_s = BASE_S + min(max(0.0, under_way / RATE - BASE_S), QUEUE / RATE)
        now_s += round_trip_s
        for window in windows:
            if under_way > BASE_S * RATE + QUEUE:
                window.on_loss(now_s)
            for _ in range(window.size):
                window.on_result(round_trip_s, marked=False, now_s=now_s)
        seen_s.append(round_trip_s)
    return seen_s


def share_with_aimd(window: DelayWindow) -> float:
    other = AimdWindow(16, 10_000)
    rounds([window, other], 300)
    ours = total = 0
    for step in range(1000):
        rounds([window, other], 1, begin_s=1e3 + step)
        ours, total = ours + window.size, total + window.size + other.size
    return ours / total


def test_beside_a_sender_that_fills_the_queue_it_has_its_share() -> None:
    assert share_with_aimd(DelayWindow(16, 10_000)) < 0.1
    assert 0.35 < share_with_aimd(CompetingDelayWindow(16, 10_000)) < 0.65


def test_alone_it_keeps_the_queue_at_its_target() -> None:
    window = CompetingDelayWindow(16, 10_000)
    rounds([window], 100)
    assert not window.competes
    assert max(rounds([window], 100, begin_s=1e3)) < BASE_S + 2e-3


def test_when_the_other_has_gone_the_queue_empties_again() -> None:
    window = CompetingDelayWindow(16, 10_000)
    rounds([window, AimdWindow(16, 10_000)], 60)
    assert window.competes
    rounds([window], 400, begin_s=1e3)
    assert not window.competes
    assert max(rounds([window], 100, begin_s=1e4)) < BASE_S + 2e-3


def test_a_queue_that_is_empty_for_a_moment_is_still_somebody_elses() -> None:
    """As when the other sender has just halved."""
    window = CompetingDelayWindow(16, 10_000)
    window.on_result(BASE_S, marked=False, now_s=0.0)
    for step in range(1, 9):
        window.on_result(2 * BASE_S, marked=False, now_s=float(step))
    assert window.competes
    for num_round_trips in range(1, 4):
        window.on_result(BASE_S, marked=False, now_s=8.0 + num_round_trips * BASE_S)
        assert window.competes
    window.on_result(BASE_S, marked=False, now_s=8.0 + 4.1 * BASE_S)
    assert not window.competes


def test_a_mark_halves_it_while_it_competes() -> None:
    window = CompetingDelayWindow(16, 10_000)
    window.on_result(BASE_S, marked=False, now_s=0.0)
    for step in range(1, 9):
        window.on_result(2 * BASE_S, marked=False, now_s=float(step))
    assert window.competes
    before = window.size
    window.on_result(2 * BASE_S, marked=True, now_s=100.0)
    assert window.size == before // 2
