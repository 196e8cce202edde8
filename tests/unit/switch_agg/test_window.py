import pytest

from switch_agg.window import AimdWindow, DelayWindow, FixedWindow, WindowPolicy


def test_aimd_doubles_then_adds_one_a_round_trip_and_halves_once_a_round_trip() -> None:
    window = AimdWindow(4, 1000)
    for _ in range(4):
        window.on_result(0.01, marked=False, now_s=0.0)
    assert window.size == 8
    window.on_result(0.01, marked=True, now_s=1.0)
    window.on_result(0.01, marked=True, now_s=1.001)
    window.on_loss(1.002)
    assert window.size == 4
    for _ in range(5):
        window.on_result(0.01, marked=False, now_s=1.003)
    assert window.size == 5
    window.on_loss(1.02)
    assert window.size == 2


def test_delay_window_settles_where_the_queue_is_the_target() -> None:
    window = DelayWindow(4, 10_000, target_s=1e-3)
    rate, base_s = 1e5, 2e-3  # packets a second
    for step in range(400):
        round_trip_s = max(base_s, window.size / rate)
        for _ in range(window.size):
            window.on_result(round_trip_s, marked=False, now_s=step * base_s)
    # Full: base x rate is under way; the queue stays near the target.
    assert base_s * rate * 0.8 <= window.size <= (base_s + 2e-3) * rate


def test_windows_never_leave_their_range() -> None:
    for window in (AimdWindow(4, 8), DelayWindow(4, 8)):
        for step in range(100):
            window.on_result(0.01, marked=False, now_s=float(step))
        assert window.size == 8
        for step in range(100, 200):
            window.on_loss(float(step))
        assert window.size == 1


@pytest.mark.parametrize(("kind", "cls"), [("fixed", FixedWindow), ("aimd", AimdWindow), ("delay", DelayWindow)])
def test_a_policy_makes_its_window(kind: str, cls: type) -> None:
    window = WindowPolicy.model_validate({"kind": kind}).window(64)
    assert isinstance(window, cls)
    assert window.size == (64 if kind == "fixed" else 16)
