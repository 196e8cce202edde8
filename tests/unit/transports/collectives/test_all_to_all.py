"""All-to-all's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

import pytest

from transports.collectives.all_to_all import AllToAll
from transports.collectives.cost import sent_bytes
from transports.collectives.timing import alpha_beta_time_s

SIZE_BYTES = 4_000_000


def time_s(collective: AllToAll, num_workers: int) -> float:
    world = collective.world(num_workers)
    return alpha_beta_time_s(collective, "all_reduce", world, SIZE_BYTES // 4, 4, alpha_s=1e-5, beta_s_per_byte=8e-9)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_both_readings_take_the_time_of_their_formulas(num_workers: int) -> None:
    once_s = SIZE_BYTES * 8e-9
    full_s = time_s(AllToAll(exchange="full"), num_workers)
    assert full_s == pytest.approx((num_workers - 1) * once_s, rel=0.02)
    shards_s = time_s(AllToAll(exchange="shards"), num_workers)
    assert shards_s == pytest.approx(2 * (num_workers - 1) / num_workers * once_s, rel=0.12)


def test_full_sends_the_gradient_to_everybody_and_shards_a_part_twice() -> None:
    full = sent_bytes(AllToAll(exchange="full"), "all_reduce", AllToAll().world(4), 1000, 4)
    assert {count.payload_bytes for count in full.values()} == {4000}
    shards = sent_bytes(AllToAll(), "all_reduce", AllToAll().world(4), 1000, 4)
    assert {count.payload_bytes for count in shards.values()} == {2 * 1000}
    assert len(full) == len(shards) == 12
