"""A link's rate holds for a message that is shorter than a super-frame."""

import pytest

from testbed.benchmarks.allreduce import allreduce_rows
from tests.load import is_busy


@pytest.mark.privileged
@pytest.mark.quiet  # a time, of messages of milliseconds
def test_short_messages_take_their_time() -> None:
    """40 kB between two at 25 Mbit/s: two messages of 20 kB each way, one after the other, 13.4 ms."""
    rows = allreduce_rows(
        num_workers=2,
        link={"rate": "25mbit", "delay": "0s"},
        sizes=["40kB"],
        stacks=["ring/tcp", "gloo"],
        repeat=15,  # some of gloo's begin apart
        congestion="cubic",
    )
    ratios = {row["stack"]: row["ratio_to_bound"] for row in rows}
    assert set(ratios) == {"ring/tcp", "gloo"}
    assert min(ratios.values()) >= (0.65 if is_busy() else 0.9), f"bursts or whole super-frames pass at once: {ratios}"
