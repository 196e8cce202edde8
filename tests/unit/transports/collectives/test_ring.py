"""The ring's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from transports.collectives.base import World
from transports.collectives.cost import sent_bytes
from transports.collectives.ring import Ring
from transports.collectives.schedules.segments import MIN_SEGMENT_BYTES


def test_each_participant_sends_the_least_that_an_all_reduce_can() -> None:
    counts = sent_bytes(Ring(), "all_reduce", World(num_workers=4), 1_000_000, 4)
    assert set(counts) == {(rank, (rank + 1) % 4) for rank in range(4)}
    assert {count.payload_bytes for count in counts.values()} == {2 * 3 * 1_000_000}


def test_no_message_is_longer_than_a_segment() -> None:
    steps = Ring.model_validate({"segment_bytes": "100kB"}).schedule(
        "all_reduce", World(num_workers=3), 1, 1_000_001, element_bytes=4
    )
    assert max(step.chunk.count * 4 for step in steps) <= 100_000


def test_a_part_is_cut_so_that_its_first_half_can_travel_on() -> None:
    steps = Ring().schedule("all_reduce", World(num_workers=2), 0, MIN_SEGMENT_BYTES, element_bytes=4)
    assert [step.chunk.count for step in steps if step.kind == "reduce"] == [MIN_SEGMENT_BYTES // 4] * 2


def test_short_parts_travel_whole() -> None:
    steps = Ring().schedule("all_reduce", World(num_workers=4), 0, 1000, element_bytes=4)
    assert len(steps) == 2 * 2 * 3


def test_a_segment_of_one_element_is_the_least() -> None:
    steps = Ring.model_validate({"segment_bytes": "1B"}).schedule(
        "all_reduce", World(num_workers=2), 0, 4, element_bytes=8
    )
    assert {step.chunk.count for step in steps} == {1}
