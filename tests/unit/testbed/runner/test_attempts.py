"""Attempts are numbered for good, expected once, and remembered."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.report.comparison.points import ComparedPoint
from testbed.runner.attempts import FILE, MAX_LOST, Attempts, StaleAttemptError
from tests.compared import compared_point


def points(number: int = 2) -> Sequence[ComparedPoint]:
    return [compared_point({"link.rate": f"{each}gbit"}) for each in range(1, number + 1)]


def test_a_point_is_on_one_machine_at_a_time() -> None:
    attempts, swept = Attempts(), points(2)
    first, second = (attempts.begin(swept, 1, machine=name) for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert {first.position, second.position} == {0, 1}
    assert attempts.begin(swept, 1, machine="c") is None
    attempts.lose(first.number, "it burnt")
    again = attempts.begin(swept, 1, machine="c")
    assert again is not None
    assert (again.position, again.number) == (first.position, 3)


def test_what_was_lost_or_is_there_already_is_not_expected() -> None:
    attempts, swept = Attempts(), points(1)
    first = attempts.begin(swept, 1, machine="a")
    assert first is not None
    attempts.lose(first.number, "silence")
    second = attempts.begin(swept, 1, machine="b")
    assert second is not None
    for stale in (first.number, 0, 99):
        with pytest.raises(StaleAttemptError, match=f"attempt {stale} is not expected; the latest is 2"):
            attempts.accept(stale, "record")
    attempts.refuse(first.number, "it came")
    attempts.accept(second.number, "record")
    with pytest.raises(StaleAttemptError):
        attempts.accept(second.number, "record")
    assert [(entry.end, entry.reason, entry.record) for entry in attempts.entries] == [
        ("refused", "silence; it came", ""),
        ("accepted", "", "record"),
    ]


def test_numbers_go_on_in_the_next_process_and_nothing_of_the_last_one_is_expected(tmp_path: Path) -> None:
    attempts = Attempts.load(tmp_path)
    assert attempts.begin_session() == 1
    first = attempts.begin(points(), 1, machine="a", over_s=40.0)
    assert first is not None
    attempts.save(tmp_path)
    again = Attempts.load(tmp_path)
    (abandoned,) = again.abandoned
    assert (abandoned.number, abandoned.machine, abandoned.over_s) == (2, "a", 40.0)
    assert again.begin_session() == 3
    again.save(tmp_path)
    assert Attempts.load(tmp_path).abandoned == [abandoned], "it is waited for until it has surely ended"
    again.close_abandoned()
    with pytest.raises(StaleAttemptError):
        again.accept(first.number, "record")
    second = again.begin(points(), 1, machine="b")
    assert second is not None
    assert second.number == 4
    again.save(tmp_path)
    assert [(entry.number, entry.end) for entry in Attempts.load(tmp_path).entries] == [(2, "lost"), (4, "open")]


def test_a_sweep_s_identity_is_that_of_its_directory(tmp_path: Path) -> None:
    made = Attempts()
    made.save(tmp_path)
    assert Attempts.load(tmp_path).identity == made.identity
    assert Attempts().identity != made.identity
    (tmp_path / FILE).write_text('{"schema_version": 1, "last": 1, "attempts": []}')
    assert Attempts.load(tmp_path).identity, "an older file has none"


def test_a_point_that_is_lost_again_and_again_is_given_up() -> None:
    attempts, swept = Attempts(), points(1)
    for _ in range(MAX_LOST):
        attempt = attempts.begin(swept, 1, machine="a")
        assert attempt is not None
        attempts.lose(attempt.number, "it killed the machine")
    assert attempts.begin(swept, 1, machine="a") is None
    assert attempts.given_up == [0]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 1, "last": 1, "attempts": [{"x": 1}]}', '{"last": 1}'])
def test_a_file_that_somebody_has_changed_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SpecError, match=r"attempts\.json cannot be read.*remove it"):
        Attempts.load(tmp_path)
    (tmp_path / FILE).write_text('{"schema_version": 9, "last": 1, "attempts": []}')
    with pytest.raises(SpecError, match="schema_version 9; this testbed reads 1"):
        Attempts.load(tmp_path)
