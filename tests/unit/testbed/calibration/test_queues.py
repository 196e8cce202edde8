"""What is made of the datagrams; how they fill a real queue is in tests/integration/test_links.py."""

from typing import cast

import pytest

from testbed.calibration import queues
from testbed.calibration.queues import measure_queue
from testbed.deployment.deployment import Deployment
from testbed.errors import CalibrationError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan

DIRECTION = make_plan(validate({"name": "x", "workers": 2, "link": {"rate": "8mbit", "queue": "100kB"}})).directions[0]
NOBODY = cast("Deployment", None)


def test_a_filling_that_nothing_came_through_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fillings = [
        queues._Filling([1e-3], [], 90),
        queues._Filling([], [0.2], 90),
        queues._Filling([1e-3], [0.101, 0.1], 90),
    ]
    monkeypatch.setattr(queues, "_fill", lambda *_: fillings.pop(0))
    measured = measure_queue(NOBODY, DIRECTION)
    assert (measured.added_s, measured.expected_s) == (pytest.approx(0.0995), pytest.approx(0.1))
    assert not fillings


def test_nothing_is_not_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_fill", lambda *_: queues._Filling([1e-3], [], 90))
    with pytest.raises(CalibrationError, match=r"^w0 -> s0: its queue was filled 5 times, and nothing"):
        measure_queue(NOBODY, DIRECTION)


@pytest.mark.parametrize(
    ("rate", "queue", "num_segments", "excess"),
    [
        ("10mbit", "1MB", 1, 9.0),  # 0.8 s to drain, filled in a tenth
        ("100mbit", "20MB", 1, 4.04),  # what calls of a packet each send in 30 us, and not seventeen times the rate
        ("1gbit", "1MB", 5, 2.0),
    ],
)
def test_a_queue_fills_no_faster_than_calls_send(rate: str, queue: str, num_segments: int, excess: float) -> None:
    plan = make_plan(validate({"name": "x", "workers": 2, "link": {"rate": rate, "queue": queue}}))
    assert queues._filling_excess(plan.directions[0], num_segments) == pytest.approx(excess, rel=0.01)
