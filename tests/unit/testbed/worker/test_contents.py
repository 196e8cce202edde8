import pytest
import torch

from testbed.worker.contents import Contents


def test_what_is_given_follows_from_the_seed_and_is_other_each_time() -> None:
    first, again, other = (Contents(seed, {"float32": 100}) for seed in (1, 1, 2))
    given = first.take("float32", 100)
    assert torch.equal(given, again.take("float32", 100))
    assert not torch.equal(given, other.take("float32", 100))
    assert not torch.equal(given, first.take("float32", 100))
    assert given.data_ptr() != again.take("float32", 100).data_ptr()


@pytest.mark.parametrize("element_type", ["uint8", "int64", "float16", "bfloat16", "float64", "bool"])
def test_any_type_can_be_given_as_often_as_one_likes_and_of_any_length(element_type: str) -> None:
    contents = Contents(1, {element_type: 3_000_000})
    for count in (3_000_000, 0, 1, 2_999_999):
        assert contents.take(element_type, count).shape == (count,)
    assert contents.take(element_type, 1000).dtype == getattr(torch, element_type)


def test_memory_is_used_again_by_whoever_fits() -> None:
    contents = Contents(1, {})
    large, small = contents.buffer("float32", 1000), contents.buffer("float32", 10)
    assert large.data_ptr() != small.data_ptr()
    contents.give_back(large)
    contents.give_back(small)
    assert contents.buffer("float32", 8).data_ptr() == small.data_ptr()
    assert contents.buffer("float32", 8).data_ptr() == large.data_ptr()
    contents.give_back(large[:8])
    assert len(contents.buffer("float32", 1000)) == 1000, "of the whole buffer, not of the part that was used"
    assert contents.buffer("int32", 4).dtype == torch.int32
