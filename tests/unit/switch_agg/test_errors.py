import pytest
from pydantic import ValidationError

from switch_agg.errors import explained
from switch_agg.faults import Faults
from switch_agg.job import Job


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Faults.model_validate({"up": {"loss": 2}}),
            "up.loss: input should be less than or equal to 1 (got 2)",
        ),
        (lambda: Faults.model_validate({"upp": {}}), "upp: there is no such key"),
        (lambda: Job(workers=("a",), num_slots=3), "num_slots: a pool has a power of two of slots"),
        (
            lambda: Job.model_validate({"number": 16}),
            "number: input should be less than 16 (got 16); workers: is required",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_its_path(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValidationError) as caught:
        make()
    assert explained(caught.value) == said
