import pytest

from testbed.experiment.placements.base import PLACEMENTS


@pytest.mark.parametrize(
    ("places", "attached"),
    [
        ("0011", "0101"),
        ("00112233", "02"),
        ("0000112", "01201"),
        ("01234567", "0246"),
        ("0011", "01"),
        ("000", "000"),
    ],
)
def test_neighbours_in_rank_are_on_different_switches(places: str, attached: str) -> None:
    assert "".join(PLACEMENTS.parse("spread").attach(list(places), len(attached), seed=1)) == attached
