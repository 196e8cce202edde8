from collections import Counter

import pytest
from pydantic import ValidationError

from testbed.experiment.topologies.base import TOPOLOGIES


@pytest.mark.parametrize(
    ("dims", "degree", "num_links"),
    [
        ([3, 3], 4, 18),
        ([4, 5], 4, 40),
        ([3, 4, 5], 6, 180),
        ([2, 2], 2, 4),
        ([2, 4], 3, 12),
        ([2, 2, 2], 3, 12),
    ],
)
def test_every_switch_has_two_neighbours_along_each_dimension(dims: list[int], degree: int, num_links: int) -> None:
    fabric = TOPOLOGIES.parse({"kind": "torus", "dims": dims}).fabric(1)
    assert len(fabric.trunks) == num_links
    degrees = Counter(name for edge in fabric.trunks for name in (edge.first, edge.second))
    assert set(degrees.values()) == {degree}
    assert fabric.places == fabric.switches


@pytest.mark.parametrize("dims", [[4], [2, 2, 2, 2], [1, 4], [64, 64], 4])
def test_other_dimensions_are_refused(dims: object) -> None:
    with pytest.raises(ValidationError):
        TOPOLOGIES.parse({"kind": "torus", "dims": dims})


def test_it_is_drawn_as_a_grid_and_a_third_dimension_in_layers() -> None:
    flat = TOPOLOGIES.parse({"kind": "torus", "dims": [2, 3]}).outline(6)
    assert flat == {f"s{3 * row + column}": (column, row) for row in range(2) for column in range(3)}
    deep = TOPOLOGIES.parse({"kind": "torus", "dims": [2, 2, 2]}).outline(8)
    assert len(set(deep.values())) == 8
    assert deep["s4"] == pytest.approx((0.4, -0.3)), "up and right of the first layer"
