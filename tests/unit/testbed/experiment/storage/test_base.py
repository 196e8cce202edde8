"""What holds for every way to read from storage."""

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.storage.base import STORAGES, Storage

NEEDED: Final[dict[str, dict[str, Any]]] = {
    "full_read": {"data": "10MB"},
    "partitioned_read": {"data": "10MB"},
    "batch_read": {"sample": "3kB"},
}
"""Options without a default."""


def storage(kind: str, **options: Any) -> Storage:
    return STORAGES.parse({"kind": kind, **NEEDED.get(kind, {}), **options})


@pytest.mark.parametrize("kind", STORAGES.kinds())
def test_something_is_read_and_said(kind: str) -> None:
    found = storage(kind, disk="200mbit")
    assert found.reads_batches != any(found.start_bytes(rank, 4) for rank in range(4))
    assert found.text()
    assert found.disk_text == "a disk of 200mbit"
    assert storage(kind).disk_text == ""


@pytest.mark.parametrize("kind", STORAGES.kinds())
def test_a_spec_says_it_and_says_it_again(kind: str) -> None:
    experiment = validate({"name": "x", "storage": {"kind": kind, **NEEDED.get(kind, {}), "at": "s0"}})
    assert Experiment.model_validate(experiment.dump()) == experiment
    assert experiment.sha256() != validate({"name": "x"}).sha256()


@settings(max_examples=100)
@given(num_bytes=st.integers(1, 10**9), num_workers=st.integers(1, 64))
def test_parts_are_alike_and_make_the_whole(num_bytes: int, num_workers: int) -> None:
    partitioned = storage("partitioned_read", data=f"{num_bytes}B")
    parts = [partitioned.start_bytes(rank, num_workers) for rank in range(num_workers)]
    assert sum(parts) == num_bytes
    assert max(parts) - min(parts) <= 1
    full = storage("full_read", data=f"{num_bytes}B")
    assert {full.start_bytes(rank, num_workers) for rank in range(num_workers)} == {num_bytes}


def test_a_batch_is_its_samples() -> None:
    assert storage("batch_read").batch_bytes(32) == 96_000
    assert storage("batch_read").prefetches
    assert not storage("batch_read", prefetch=False).prefetches


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"kind": "full_read"}, "storage.data"),
        ({"kind": "full_read", "data": "0B"}, "storage.data"),
        ({"kind": "full_read", "data": "1MB", "prefetch": True}, "storage.prefetch"),
        ({"kind": "batch_read", "sample": "1kB", "data": "1MB"}, "storage.data"),
        ({"kind": "partitioned_read", "data": "1MB", "disk": "1kbit"}, "storage.disk"),
        ("shared", "storage"),
    ],
)
def test_what_means_nothing_is_refused_by_name(value: object, field: str) -> None:
    with pytest.raises(SpecError, match=field.replace(".", r"\.")):
        validate({"name": "x", "storage": value})
