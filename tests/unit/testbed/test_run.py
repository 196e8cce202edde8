"""What a run makes of what it has read."""

import pytest

from testbed.plan import make_plan
from testbed.run import difference_of
from testbed.spec.experiment import validate

PLAN = make_plan(validate({"name": "x", "workers": 12, "link": {"rate": "100mbit", "delay": "1ms"}}))
DIRECTIONS = {direction.hop: direction for direction in PLAN.directions}


@pytest.mark.parametrize(
    ("line", "hop"),
    [
        ("s0-eth1: queue is 1 bytes, asked for 2", ("s0", "w1")),
        ("s0: no route to 10.0.0.8/30", ("s0", "w3")),
        ("w2: sysctl a is 1, asked for 0", ("w2", "s0")),
        (f"{DIRECTIONS['w4', 's0'].delay_stage.device}: netem loss is 0, asked for 1", ("w4", "s0")),  # type: ignore[union-attr]
    ],
)
def test_a_difference_counts_against_the_directions_it_concerns(line: str, hop: tuple[str, str]) -> None:
    assert difference_of(DIRECTIONS[hop], [line]) == line
    assert difference_of(DIRECTIONS["w9", "s0"], [line]) is None


def test_a_port_whose_name_begins_like_anothers_is_not_that_one() -> None:
    assert difference_of(DIRECTIONS["s0", "w1"], ["s0-eth11: queue is 1 bytes, asked for 2"]) is None
