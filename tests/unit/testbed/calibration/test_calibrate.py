"""Which links stand for which."""

from testbed.calibration.calibrate import representatives
from testbed.calibration.tolerances import link_class
from testbed.experiment.experiment import validate
from testbed.plan.direction import Direction
from testbed.plan.plan import make_plan


def classes(num_workers: int) -> dict[str, list[Direction]]:
    plan = make_plan(validate({"name": "t", "workers": num_workers}))
    found: dict[str, list[Direction]] = {}
    for direction in plan.directions:
        found.setdefault(link_class(plan, direction), []).append(direction)
    return found


def test_classes_are_measured_on_links_of_their_own_at_once() -> None:
    up, down = representatives(classes(2)).values()
    assert up.hop == ("w0", "s0")
    assert down.hop == ("s0", "w1"), "w0's other direction would have to wait"


def test_where_links_are_few_two_classes_share_one() -> None:
    members = classes(2)
    one_link = {name: directions[:1] for name, directions in members.items()}
    assert {direction.link for direction in representatives(one_link).values()} == {"w0-s0"}
