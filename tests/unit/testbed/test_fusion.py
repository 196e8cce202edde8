"""Fusion as a spec says it, and the buckets that come of it; real DistributedDataParallel's are in test_training.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.fusion import Fusion, fuse
from testbed.spec.experiment import Experiment, validate


def fusion(value: object) -> Fusion:
    return validate({"name": "x", "fusion": value}).fusion


@pytest.mark.parametrize(
    ("counts", "limit_bytes", "buckets"),
    [
        ([], 1024, ()),
        ([10], 1024, (10,)),
        ([256, 256, 256], 1024, (256, 256, 256)),
        ([300, 200, 100], 1024, (300, 300)),
        ([300, 200, 100], 2**30, (600,)),
    ],
)
def test_buckets_close_when_they_have_reached_the_limit(
    counts: list[int], limit_bytes: int, buckets: tuple[int, ...]
) -> None:
    assert fuse(counts, limit_bytes) == buckets


@given(st.lists(st.integers(1, 10**6)))
def test_layers_are_tensors_and_none_is_one_bucket(counts: list[int]) -> None:
    assert fuse(counts, fusion("layers").limit_bytes) == tuple(counts)
    assert fuse(counts, fusion("none").limit_bytes) == ((sum(counts),) if counts else ())


@given(st.lists(st.integers(1, 10**6)), st.integers(1024, 2**31))
def test_no_gradient_is_lost_and_only_the_last_bucket_may_be_small(counts: list[int], limit_bytes: int) -> None:
    buckets = fuse(counts, limit_bytes)
    assert sum(buckets) == sum(counts)
    assert all(4 * bucket >= limit_bytes for bucket in buckets[:-1])


@pytest.mark.parametrize(
    ("value", "limit_bytes"), [({}, 2**20), ("merged", 2**20), ({"bytes": "64KiB"}, 2**16), ("layers", 1)]
)
def test_a_spec_says_when_a_bucket_is_closed(value: object, limit_bytes: int) -> None:
    assert fusion(value).limit_bytes == limit_bytes


@pytest.mark.parametrize("value", ["merged", "layers", "none", {"bytes": "25MB"}])
def test_it_survives_being_written_and_read(value: object) -> None:
    made = validate({"name": "x", "fusion": value})
    assert Experiment.model_validate(made.dump()) == made


def test_the_limit_without_limit_is_exact_as_torch_takes_it() -> None:
    limit_bytes = fusion("none").limit_bytes
    assert int(limit_bytes / 2**20 * 1024 * 1024) == limit_bytes


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("layer", "fusion.kind: Input should be 'merged', 'layers' or 'none'"),
        ({"kind": "layers", "bytes": "1MiB"}, "fusion: `layers` joins nothing by size; leave `bytes` out"),
        ({"bytes": None}, "fusion: `merged` joins by size; write a size as `bytes`"),
        ({"bytes": "1B"}, "fusion.bytes: Input should be greater than or equal to 1024"),
        ({"size": "1MiB"}, "fusion.size: unknown key; allowed: bytes"),
        (None, "fusion: a fusion is layers, none, or {bytes: 1MiB}"),
    ],
)
def test_what_is_no_fusion_is_refused_with_what_is(value: object, words: str) -> None:
    with pytest.raises(SpecError) as raised:
        fusion(value)
    assert words in str(raised.value)
