import pytest
from pydantic import ValidationError

from switch_agg.job import Job


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workers": ()}, "workers"),
        ({"workers": ("a", "a")}, "host of its own"),
        ({"workers": tuple(map(str, range(33)))}, "32"),
        ({"num_elements": 100}, "32, 64, 128, 256, 512, 1024, 2048"),
        ({"num_slots": 3}, "power of two"),
        ({"first_slot": 16383, "num_slots": 2}, "16384 slots"),
        *(({"straggler_timeout_s": value}, "straggler_timeout_s") for value in (0, 101, float("inf"), float("nan"))),
        ({"parent": "root", "straggler_timeout_s": 1.0}, "in a tree"),
    ],
)
def test_what_cannot_be_a_job(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Job.model_validate({"workers": ("a", "b"), **keys})


def test_pools_are_gone_through_in_order_and_versions_alternate() -> None:
    job = Job(workers=("a",), first_slot=8, num_slots=4)
    assert [job.place(chunk) for chunk in (0, 3, 4, 7, 8)] == [(8, 0), (11, 0), (8, 1), (11, 1), (8, 0)]
    # Through the wrap of chunk numbers, too.
    assert job.place(0xFFFFFFFF) == (11, 1)
    assert job.everybody == 1
