from testbed.experiment.placements.base import PLACEMENTS


def test_another_seed_takes_other_places() -> None:
    places = [f"s{number}" for number in range(64)]
    drawn = {tuple(PLACEMENTS.parse("random").attach(places, 8, seed=seed)) for seed in range(10)}
    assert len(drawn) == 10
