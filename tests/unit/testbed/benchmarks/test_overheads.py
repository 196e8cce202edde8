"""Seconds around a run: the middle of the quiet samples, each of the quickstart as a user starts it."""

import itertools
import json
import subprocess
from typing import Any

import pytest

from testbed.benchmarks import overheads
from testbed.errors import RunFailedError


class Machine:
    """Whose hypervisor takes that share of the time between two looks."""

    def __init__(self, steal_share: float) -> None:
        self._steal_share = steal_share

    def take(self) -> "Machine":
        return self

    def steal_share_since(self, _: "Machine") -> float:
        return self._steal_share


@pytest.fixture
def quickstarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second more around its iterations than the one before."""
    seconds = itertools.count(1)

    def summary(*_: str) -> dict[str, Any]:
        phases = {"deploy": next(seconds) - 0.5, "tear_down": 0.5}
        return {"overhead_s": phases, "uss_bytes": [5, 7], "outcome": "degraded", "reasons": ["it waited", "a note"]}

    monkeypatch.setattr(overheads, "quickstart_summary", summary)


@pytest.mark.usefixtures("quickstarts")
def test_the_middle_of_the_samples_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "MachineSample", Machine(0.0))
    (row,) = overheads.overhead_rows(workers=(4,), repeat=3)
    assert (row["num_samples"], row["overhead_s"], row["uss_bytes"]) == (3, 2.0, 7)
    assert row["degraded"] == ["the run: it waited"]


@pytest.mark.usefixtures("quickstarts")
def test_nothing_is_said_where_the_hypervisor_took_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "MachineSample", Machine(0.5))
    with pytest.raises(RunFailedError, match="steal"):
        overheads.overhead_rows(workers=(4,), repeat=1)


def test_a_quickstart_that_fails_says_why() -> None:
    with pytest.raises(RunFailedError, match="nonesuch"):
        overheads.quickstart_summary("nonesuch=1")


def test_a_quickstart_whose_numbers_do_not_stand_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"outcome": "invalid", "reasons": ["the cores decided"]})
    done = subprocess.CompletedProcess([], 0, stdout=said, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RunFailedError, match="the quickstart with workers=16 is invalid: the cores decided"):
        overheads.quickstart_summary("workers=16")


@pytest.mark.privileged
def test_a_quickstart_that_ends_early_is_no_sample_of_nothing() -> None:
    soon_down = ("timeout=1s", "changes=[{at: 100ms, link: w0-s0, down: true}]")
    with pytest.raises(RunFailedError, match=r"timeout=1s, .*down.* failed: worker . on w. raised"):
        overheads.quickstart_summary("workers=2", "workload.compute_only=1", *soon_down)
