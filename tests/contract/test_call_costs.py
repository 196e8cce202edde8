"""What a collective of four bytes between two ranks costs beside its messages stays at most half of what it was when
each change of a thread, and each connection's state, was paid for by every operation (decisions 82 and 83)."""

import pytest

from tests.call_costs.__main__ import measured
from tests.call_costs.rank import CALLS

BEFORE = {
    "allocations": {"synchronous": 182.3, "bucket": 193.3, "future": 226.0, "hooked": 192.6},
    "locks": {"synchronous": 14.0, "bucket": 12.0, "future": 22.0, "hooked": 22.0},
}
"""By `python -m tests.call_costs`, of the tree before decision 82, without the locks of queues."""


@pytest.mark.parametrize("counted", BEFORE)
def test_it_is_half_of_what_it_was(counted: str) -> None:
    found = {call: cost.num_counted for call, cost in measured(counted, list(CALLS), 200).items()}
    assert found.keys() == BEFORE[counted].keys()
    over = {call: count for call, count in found.items() if not 0 < count <= BEFORE[counted][call] / 2}
    assert not over
