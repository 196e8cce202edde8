"""A link's rate holds for a message that is shorter than a super-frame."""

import json

import pytest

from tests.here import invoke
from tests.load import is_busy


@pytest.mark.privileged
@pytest.mark.quiet  # a time, of messages of milliseconds
def test_short_messages_one_after_another_take_their_time() -> None:
    """40 kB between two at 25 Mbit/s: two messages of 20 kB each way, one after the other, 13.4 ms. After a pause less:
    what a link's burst lets pass at once."""
    words = ["--json", "--workers", "2", "--link", "25mbit", "--sizes", "40kB", "--stack", "ring/tcp,gloo"]
    words += ["--repeat", "15"]  # some of gloo's begin apart
    busy = is_busy()
    done = invoke("bench", "allreduce", *words)
    assert done.returncode == 0, done.stderr
    ratios = {row["stack"]: row["ratio_to_bound"] for row in json.loads(done.stdout)["rows"]}
    assert set(ratios) == {"ring/tcp", "gloo"}
    assert min(ratios.values()) >= (0.65 if busy else 0.9), f"half a bound was seen with whole super-frames: {ratios}"
