"""What workers report is what rows are made of."""

import json
from dataclasses import asdict

import pytest

from testbed.benchmarks.allreduce import allreduce_rows, parse_sample
from testbed.errors import SpecError
from transports.bench.rows import Sample


def test_a_sample_comes_back_as_it_was_reported() -> None:
    sample = Sample(rank=1, stack="ring/tcp", size_bytes=4, number=2, begun_s=7.0, duration_s=0.5, cpu_s=0.1, error=0.0)
    assert parse_sample(json.dumps(asdict(sample))) == sample


def test_what_cannot_be_run_is_refused_before_anything_is_made() -> None:
    with pytest.raises(SpecError, match=r"workload\.stacks"):
        allreduce_rows(
            num_workers=2, link={"rate": "1gbit"}, sizes=["4B"], stacks=["nonesuch"], repeat=1, congestion="cubic"
        )
