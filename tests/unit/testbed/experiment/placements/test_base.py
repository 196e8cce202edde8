"""What holds for every placement."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.experiment.placements.base import PLACEMENTS


@pytest.mark.parametrize("kind", PLACEMENTS.kinds())
def test_as_many_hosts_as_places_take_them_all(kind: str) -> None:
    places = ["s0", "s0", "s1", "s2"]
    assert Counter(PLACEMENTS.parse(kind).attach(places, 4, seed=3)) == Counter(places)


@settings(max_examples=50)
@given(st.data())
def test_every_place_is_taken_at_most_once_and_the_same_seed_takes_the_same(data: st.DataObject) -> None:
    places = data.draw(st.lists(st.sampled_from(["s0", "s1", "s2", "s3"]), min_size=1, max_size=20))
    num_workers = data.draw(st.integers(1, len(places)))
    seed = data.draw(st.integers(0, 9))
    for kind in PLACEMENTS.kinds():
        attached = PLACEMENTS.parse(kind).attach(places, num_workers, seed=seed)
        assert len(attached) == num_workers
        assert not Counter(attached) - Counter(places)
        assert list(attached) == list(PLACEMENTS.parse(kind).attach(places, num_workers, seed=seed))
