"""Fusion as a spec says it, and the buckets that come of it; real DistributedDataParallel's are in test_training.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.fusion.base import Fusion
from testbed.plan.buckets import fuse, merge


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
    ("value", "limit_bytes"),
    [
        ({}, 2**20),
        ("size", 2**20),
        ({"bytes": "64KiB"}, 2**16),
        ("layers", 1),
        ("priority", 2**20),
        ("horovod_5ms", 2**26),
        ("horovod_1ms", 2**27),
    ],
)
def test_a_spec_says_when_a_bucket_is_closed(value: object, limit_bytes: int) -> None:
    assert fusion(value).limit_bytes == limit_bytes


@pytest.mark.parametrize(
    "value",
    [
        "size",
        "layers",
        "none",
        {"bytes": "25MB"},
        "merged",
        {"kind": "merged", "backward": "0.1s"},
        "horovod_1ms",
        "priority",
    ],
)
def test_it_survives_being_written_and_read(value: object) -> None:
    made = validate({"name": "x", "fusion": value})
    assert Experiment.model_validate(made.dump()) == made


def test_the_limit_without_limit_is_exact_as_torch_takes_it() -> None:
    limit_bytes = fusion("none").limit_bytes
    assert int(limit_bytes / 2**20 * 1024 * 1024) == limit_bytes


def _iteration_s(
    groups: tuple[int, ...], layers: list[int], backward_s: list[float], startup_s: float, s_per_element: float
) -> float:
    """From the beginning of backward until the last all-reduce is over."""
    free_s, ready_s, layer, filled = 0.0, 0.0, 0, 0
    for group in groups:
        while filled < group:
            ready_s += backward_s[layer]
            filled += layers[layer]
            layer += 1
        free_s = max(free_s, ready_s) + startup_s + group * s_per_element
        filled = 0
    return free_s


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-4, 1.0)), min_size=1, max_size=9),
    st.floats(1e-4, 1.0),
    st.floats(1e-5, 1e-2),
)
def test_merged_groups_are_never_worse_than_layers_or_one_bucket(
    layers: list[tuple[int, float]], startup_s: float, s_per_element: float
) -> None:
    counts, backward_s = [count for count, _ in layers], [time_s for _, time_s in layers]
    groups = merge(counts, backward_s, startup_s=startup_s, s_per_element=s_per_element)
    found_s = _iteration_s(groups, counts, backward_s, startup_s, s_per_element)
    for others in (tuple(counts), (sum(counts),)):
        assert found_s <= _iteration_s(others, counts, backward_s, startup_s, s_per_element) * (1 + 1e-9)


def test_a_layer_joins_the_next_whose_gradient_is_there_before_its_own_start_up_is_over() -> None:
    """By hand: the second is ready at 1.5, within the first one's start-up; the third at 2.5, when theirs is over."""
    assert merge([1, 1, 1], [1.0, 0.5, 1.0], startup_s=1.0, s_per_element=0.0) == (2, 1)
    assert merge([1, 1, 1], [1.0, 0.5, 0.9], startup_s=1.0, s_per_element=0.0) == (3,)
    assert merge([1, 1, 1], [1.0, 1.0, 1.0], startup_s=0.5, s_per_element=0.1) == (1, 1, 1)
    assert merge([5, 1, 1], [1.0, 1.0, 1.0], startup_s=0.5, s_per_element=1.0) == (5, 2)
    assert merge([], [], startup_s=1.0, s_per_element=1.0) == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "layer",
            "fusion: allowed: horovod_1ms, horovod_5ms, layers, merged, none, priority, size, time, or a mapping",
        ),
        ({"kind": "layers", "bytes": "1MiB"}, "fusion: `layers` joins nothing by size; leave `bytes` out"),
        ({"bytes": None}, "fusion: `size` needs a size; write one as `bytes`"),
        ({"kind": "merged", "bytes": "1MiB"}, "fusion: `merged` joins nothing by size; leave `bytes` out"),
        ({"cycle": "5ms"}, "fusion: `size` has no cycle; leave `cycle` out"),
        ({"kind": "time", "cycle": "1us"}, "fusion.cycle: allowed: at least 0.0001"),
        ({"kind": "priority", "backward": "1s"}, "fusion: `priority` asks nothing of backward's time"),
        ({"bytes": "1B"}, "fusion.bytes: allowed: at least 1,024"),
        ({"size": "1MiB"}, "fusion.size: unknown key; allowed: backward, bytes, cycle"),
        (None, "fusion: allowed: horovod_1ms, horovod_5ms, layers,"),
    ],
)
def test_what_is_no_fusion_is_refused_with_what_is(value: object, words: str) -> None:
    with pytest.raises(SpecError) as raised:
        fusion(value)
    assert words in str(raised.value)
