"""What is remembered of schedules is what would be made anew, and not more than may be."""

import pytest

from transports.collectives.base import World
from transports.collectives.ring import Ring
from transports.collectives.schedules import expanded
from transports.collectives.schedules.defaults import schedule
from transports.collectives.schedules.dependencies import dependencies
from transports.collectives.schedules.expanded import schedules

FOUR = World(num_workers=4)


def test_every_participants_steps_and_what_they_wait_for() -> None:
    for root in (0, 2):
        every = schedules(Ring(), "broadcast", FOUR, 1000, 4, root=root)
        expected = [
            tuple(schedule(Ring(), "broadcast", FOUR, participant, 1000, element_bytes=4, root=root))
            for participant in range(4)
        ]
        assert list(every) == expected
        assert list(every.orders) == [dependencies(steps) for steps in expected]
        assert every.num_steps == sum(map(len, expected))


def test_it_is_expanded_once_and_anew_when_too_much_came_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanded, "_recent", expanded._Recent())
    first = schedules(Ring(), "all_reduce", FOUR, 1001, 4)
    monkeypatch.setattr(expanded, "MOST_STEPS", 2 * first.num_steps)
    assert schedules(Ring(), "all_reduce", FOUR, 1001, 4) is first
    second = schedules(Ring(), "all_reduce", FOUR, 1002, 4)
    assert schedules(Ring(), "all_reduce", FOUR, 1001, 4) is first, "there is room for two"
    third = schedules(Ring(), "all_reduce", FOUR, 1003, 4)
    assert schedules(Ring(), "all_reduce", FOUR, 1003, 4) is third
    assert schedules(Ring(), "all_reduce", FOUR, 1001, 4) is first
    again = schedules(Ring(), "all_reduce", FOUR, 1002, 4)
    assert again is not second, "it was wanted the longest ago"
    assert again == second


def test_what_is_longer_than_all_that_may_be_remembered_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanded, "_recent", expanded._Recent())
    kept = schedules(Ring(), "all_reduce", FOUR, 1001, 4)
    monkeypatch.setattr(expanded, "MOST_STEPS", kept.num_steps)
    long = schedules(Ring(segment_bytes="4KB"), "all_reduce", FOUR, 1_000_000, 4)
    assert schedules(Ring(segment_bytes="4KB"), "all_reduce", FOUR, 1_000_000, 4) is not long
    assert schedules(Ring(), "all_reduce", FOUR, 1001, 4) is kept
