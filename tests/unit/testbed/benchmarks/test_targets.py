"""Rows say what holds and against which target; an unknown name says which there are."""

import io
import json
import math
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from testbed.benchmarks.targets import (
    Journal,
    NotMeasuredError,
    Row,
    chosen,
    jain_index,
    quietly,
    render_targets,
    row_text,
    target_row,
)
from testbed.errors import CalibrationError, Interrupted, MissingRequirementError, SpecError
from transports.errors import UnsupportedError


def test_jains_index_is_one_for_equals_and_a_share_where_one_has_all() -> None:
    assert jain_index([5e6, 5e6, 5e6]) == pytest.approx(1.0)
    assert jain_index([8e6, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_target_is_an_upper_or_a_lower_bound() -> None:
    assert target_row("error", 0.004, 0.005, {})["holds"]
    assert not target_row("error", 0.006, 0.005, {})["holds"]
    assert target_row("total", 18.9, 18.0, {}, at_least=True)["holds"]
    assert not target_row("total", 17.9, 18.0, {}, at_least=True)["holds"]
    assert not target_row("error", math.nan, 0.005, {})["holds"]
    assert target_row("CPU", 2.0, None, {})["holds"] is None


def test_a_row_in_words_and_in_a_table() -> None:
    rows = [
        target_row("total", 17.9, 18.0, {"steal_share": 0.1}, at_least=True),
        target_row("error", 0.001, 0.005, {}),
        target_row("CPU", 2.0, None, {}),
    ]
    assert row_text(rows[0]) == "total: 17.9 (at least 18): NO"
    assert row_text({**rows[0], "reasons": ["star, degraded: late"]}).splitlines()[1:] == ["    star, degraded: late"]
    assert row_text({**rows[1], "reasons": ["star, degraded: late"]}) == "error: 0.001 (at most 0.005): yes"
    assert row_text(rows[2]) == "CPU: 2"
    stream = io.StringIO()
    render_targets(rows, Console(file=stream, width=100))
    assert ">= 18" in stream.getvalue()
    assert "<= 0.005" in stream.getvalue()


def one(what: str) -> Callable[[], Iterator[Row]]:
    return lambda: iter([target_row(what, 1.0, 2.0, {})])


def failing(error: BaseException) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        yield target_row("before", 1.0, None, {})
        raise error

    return rows


def test_an_unknown_benchmark_names_those_there_are() -> None:
    benchmarks = {"rate": one("rate"), "delay": one("delay")}
    with pytest.raises(SpecError, match="--only nonesuch: allowed: rate, delay"):
        chosen(benchmarks, ["rate", "nonesuch"])
    assert list(chosen(benchmarks, ["delay"])) == ["delay"]
    assert list(chosen(benchmarks, [])) == ["rate", "delay"]


def test_rows_are_reported_and_written_as_they_come_and_outlive_what_fails_after_them() -> None:
    stream = io.StringIO()
    reported: list[str] = []
    with Journal(stream=stream, tell=reported.append) as journal:
        journal.measure("bad", failing(CalibrationError("too slow")))
        assert '"before"' in stream.getvalue()
        journal.measure("worse", failing(ZeroDivisionError("by nothing")))
        journal.measure("good", one("fine"), part="links")
    written = json.loads(stream.getvalue())
    assert [row["what"] for row in written["rows"]] == ["before", "before", "fine"]
    assert written["rows"][2]["part"] == "links"
    assert written["failures"] == {"bad": "too slow", "worse": "ZeroDivisionError: by nothing"}
    assert reported[:2] == ["before: 1", "bad: not measured: too slow"]
    with pytest.raises(NotMeasuredError, match="bad: not measured: too slow\nworse: not measured: ZeroDivisionError"):
        journal.require_all()


def test_an_interruption_leaves_whole_json() -> None:
    stream = io.StringIO()
    with pytest.raises(Interrupted), Journal(stream=stream, tell=lambda _: None) as journal:
        journal.measure("long", failing(Interrupted("SIGINT")))
    assert [row["what"] for row in json.loads(stream.getvalue())["rows"]] == ["before"]


def test_the_exit_code_is_the_failures_own_where_they_agree() -> None:
    missing, late = MissingRequirementError("no tc"), CalibrationError("too slow")
    assert NotMeasuredError({"a": missing, "b": missing}).exit_code == 3
    assert str(NotMeasuredError({"a": missing, "b": missing})) == "a, b: not measured: no tc"
    assert NotMeasuredError({"a": missing, "b": late}).exit_code == 1
    assert NotMeasuredError({"a": UnsupportedError("no mptcp")}).exit_code == 1


def test_a_quiet_sample_is_taken_once_with_what_the_cores_did() -> None:
    taken: list[int] = []
    value, facts = quietly(lambda: taken.append(1) or len(taken))
    assert value == len(taken)
    assert facts.keys() == {"steal_share", "busy_share"}
