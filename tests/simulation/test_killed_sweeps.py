"""kill -9 of a sweep at seeded moments: the same command goes on, and its end is that of a sweep that nobody killed.

Real processes, real signals, real records; only what a run emulates is left out, and what is in pictures, so that there
are many moments: any at which the sweep, or a run of it, changes something on the disk.
"""

import itertools
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.cheap_runs import sweep_until
from tests.ranks import fork_server

NUM_KILLS: Final = int(os.environ.get("SWEEP_KILLS", "20"))
_KILLS_PER_SWEEP: Final = 5
_RETRIES: Final = 2
SPEC: Final[dict[str, Any]] = {
    "name": "x",
    "workers": 2,
    "sweep": {"link.rate": ["100mbit", "200mbit", "1gbit"]},
    "repeat": 3,
    "order_seed": 1,
}
FOREVER: Final = -1


class Made(NamedTuple):
    """What a sweep has left behind, without what is another in every run."""

    order: list[tuple[str, str]]
    """Every run that came to its end, in their order: spec and outcome."""
    points: list[tuple[str, str, list[tuple[str, bool]]]]
    """Spec and outcome of every point, and the outcome of each run and whether it was repeated."""


def sweep(output: Path, moment: int, log: Path | None = None) -> int | None:
    """The exit code of a sweep's process that is killed at that moment, if it comes so far."""
    process = fork_server().Process(target=sweep_until, args=(SPEC, output, moment, _RETRIES, log))
    process.start()
    process.join(60)
    assert not process.is_alive(), "it hangs"
    return process.exitcode


def document(output: Path) -> dict[str, Any]:
    (path,) = output.glob("x-sweep-*/sweep.json")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def made(output: Path) -> Made:
    summaries = [json.loads(path.read_text()) for path in output.glob("*/summary.json")]
    written = document(output)
    assert written["finished"]
    listed = Counter(run["record"] for point in written["points"] for run in point["runs"])
    assert set(listed.values()) == {1}, "none twice"
    assert set(listed) == {summary["record"] for summary in summaries}, "none lost, none that nobody knows of"
    return Made(
        order=[
            (summary["spec_sha256"], summary["outcome"])
            for summary in sorted(summaries, key=lambda summary: str(summary["started_at"]))
        ],
        points=[
            (point["spec_sha256"], point["outcome"], [(run["outcome"], run["repeated"]) for run in point["runs"]])
            for point in written["points"]
        ],
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, list[str]]:
    """A sweep that nobody kills, and what it changes on the disk, in this order."""
    output, log = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("log") / "changes"
    assert sweep(output, FOREVER, log) == 0
    found = made(output)
    assert Counter(outcome for _, outcome in found.order) == {"valid": 5, "degraded": 3, "invalid": 4}
    assert found.order[0][1] == "invalid", "before anything else there is a try to be remembered"
    assert [outcome for _, outcome, _ in found.points] == ["degraded", "degraded", "invalid"]
    return found, log.read_text().splitlines()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed >= 2 else ())
        for seed in range(-(-NUM_KILLS // _KILLS_PER_SWEEP))
    ],
)
def test_a_sweep_that_is_killed_again_and_again_goes_on_where_it_was(
    tmp_path: Path, whole: tuple[Made, list[str]], seed: int
) -> None:
    expected, changes = whole
    # All over it: what lies between two of these moments is how far a sweep comes before it is killed again.
    moments = sorted(random.Random(seed).sample(range(len(changes)), _KILLS_PER_SWEEP))
    for before, moment in itertools.pairwise([0, *moments]):
        assert sweep(tmp_path, moment - before) == -signal.SIGKILL
        for path in tmp_path.glob("x-sweep-*/sweep.json"):
            assert json.loads(path.read_text())["points"], "it is always whole"
    assert sweep(tmp_path, FOREVER) == 0
    assert made(tmp_path) == expected


def test_a_run_that_has_left_its_record_counts_although_nobody_has_written_it_down(
    tmp_path: Path, whole: tuple[Made, list[str]]
) -> None:
    """Killed behind the last change of a run's record, before the first of the sweep's document."""
    expected, changes = whole
    recorded = [number for number, change in enumerate(changes) if change.endswith("/summary.json")]
    assert len(recorded) == len(expected.order)
    for number in recorded[::3]:
        output = tmp_path / str(number)
        output.mkdir()
        assert sweep(output, number + 1) == -signal.SIGKILL
        assert sweep(output, FOREVER) == 0
        assert made(output) == expected


def test_nothing_is_written_in_place(whole: tuple[Made, list[str]]) -> None:
    """What has its name is whole: it was written under another, and renamed."""
    opened = [Path(change.removeprefix("open ")).name for change in whole[1] if change.startswith("open ")]
    assert ".sweep.json.new" in opened
    assert [name for name in opened if not (name.startswith(".") and name.endswith(".new"))] == ["lock"], "and is empty"
