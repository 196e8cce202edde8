from testbed.experiment.placements.base import PLACEMENTS


def test_the_first_places_are_taken() -> None:
    assert list(PLACEMENTS.parse("packed").attach(["s0", "s0", "s1", "s1"], 3, seed=1)) == ["s0", "s0", "s1"]
