"""Fusion as a spec says it, and the buckets that come of it; real DistributedDataParallel's are in test_training.py."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.fusion.base import FUSIONS, Fusion, Gradients, fuse, shapes_of


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


@pytest.mark.parametrize("kind", FUSIONS.kinds())
@pytest.mark.parametrize("sizes", [[], [7], [64, 1, 300_000, 5, 2], [1] * 20])
def test_every_fusion_puts_each_element_into_one_bucket_whose_tensors_it_knows(kind: str, sizes: list[int]) -> None:
    gradients = Gradients(
        tensors=[(size,) for size in sizes], layers=[[(size,)] for size in sizes], backward_s=[1e-3] * len(sizes)
    )
    made = FUSIONS.parse(kind)
    buckets = made.buckets(gradients, lambda num_elements: 1e-4 + 1e-8 * num_elements)
    assert sum(buckets) == sum(sizes)
    assert all(bucket > 0 for bucket in buckets)
    shapes = list(made.bucket_shapes(gradients, buckets))
    assert [sum(map(prod, each)) for each in shapes] == list(buckets)
    assert made.text


BY_ENGINE = [kind for kind in FUSIONS.kinds() if FUSIONS.parse(kind).by_engine]


@pytest.mark.parametrize("kind", BY_ENGINE)
def test_what_the_engine_sends_is_ordered(kind: str) -> None:
    items = FUSIONS.parse(kind).order((30, 12)).items((30, 12))
    assert (items[0].start, items[-1].stop) == (0, 42)


@pytest.mark.parametrize("kind", [kind for kind in FUSIONS.kinds() if kind not in BY_ENGINE])
def test_what_torch_sends_has_a_limit_and_no_order_of_ours(kind: str) -> None:
    made = FUSIONS.parse(kind)
    assert made.limit_bytes > 0
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        made.order((30, 12))


def test_what_an_earlier_version_wrote_down_is_read() -> None:
    """With every option of every kind spelled out, null where it had no meaning."""
    assert fusion({"kind": "layers", "bytes": None, "cycle": None, "backward": None}) == fusion("layers")


def test_shapes_are_cut_where_buckets_end() -> None:
    assert list(shapes_of([(2, 3), (4,), (5,)], (10, 5))) == [[(2, 3), (4,)], [(5,)]]


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


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "layer",
            "fusion: 'layer' is not a fusion; allowed: horovod_1ms, horovod_5ms, layers, merged, none, priority, size",
        ),
        ({"kind": "layers", "bytes": "1MiB"}, "fusion: `layers` has no `bytes`; leave it out, or write `kind: pr"),
        ({"bytes": None}, "fusion.bytes: None is not a size"),
        ({"kind": "merged", "bytes": "1MiB"}, "fusion: `merged` has no `bytes`; leave it out"),
        ({"cycle": "5ms"}, "fusion: `size` has no `cycle`; leave it out, or write `kind: time`"),
        ({"kind": "time", "cycle": "1us"}, "fusion.cycle: allowed: at least 0.0001"),
        (
            {"kind": "priority", "backward": "1s"},
            "fusion: `priority` has no `backward`; leave it out, or write `kind: merged`",
        ),
        ({"bytes": "1B"}, "fusion.bytes: allowed: at least 1,024"),
        ({"size": "1MiB"}, "fusion.size: unknown key; allowed: backward, bytes, cycle"),
        (None, "fusion: a fusion is a name or a mapping; allowed: horovod_1ms, horovod_5ms, layers,"),
    ],
)
def test_what_is_no_fusion_is_refused_with_what_is(value: object, words: str) -> None:
    with pytest.raises(SpecError) as raised:
        fusion(value)
    assert words in str(raised.value)
