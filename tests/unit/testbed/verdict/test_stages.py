from typing import Any

import polars as pl
import pytest

from testbed.measure.observations import Barrier
from testbed.record.frames import STAGE_SCHEMA
from testbed.verdict.facts import StorageFacts
from testbed.verdict.judge import judge
from testbed.verdict.stages import stages_summary, storage_summary
from testbed.verdict.summarize import measure
from tests.facts import LINK, facts
from tests.rows import iteration, iterations

BARRIERS = {
    "started": Barrier(4.0, 4.5),
    "read": Barrier(7.0, 7.25),
    "compute_only_done": Barrier(20.0, 20.5),
    "warmup": Barrier(21.0, 21.0),
    "measure": Barrier(28.0, 28.5),
    "done": Barrier(35.5, 36.0),
}
"""Launched at 1: 3 s of starting, 2.5 s of reading, 0.5 s of setting up, 7 s and 7 s of iterations."""
STORAGE = StorageFacts(text="d0", start_bytes=2000, start_least_s=2.0, batch_bytes=0, batch_least_s=0.0)


def stages(*rows: tuple[int, str, float, float, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=STAGE_SCHEMA, orient="row")


def job(**changes: Any) -> Any:
    rows = iterations(
        iteration(0, 21.0, phase="warmup", host_to_device_end_s=21.5, optimizer_end_s=27.75),
        iteration(1, 21.25, phase="warmup", optimizer_end_s=28.0),
        iteration(0, 28.5, optimizer_end_s=35.25),
        iteration(1, 28.75, optimizer_end_s=35.5),
    )
    found = stages(
        (0, "start", 1.0, 3.5, 0),
        (1, "start", 1.0, 4.0, 0),
        (0, "reading", 4.5, 5.5, 400),
        (0, "reading", 5.5, 6.5, 600),
        (1, "reading", 4.5, 7.0, 1000),
        (0, "start", 20.5, 21.0, 0),
        (1, "start", 20.5, 20.75, 0),
    )
    known = {"iterations": rows, "stages": found, "launched_s": 1.0, "barriers": BARRIERS, "storage": STORAGE}
    return facts(**(known | changes))


def test_stages_are_of_the_job_and_what_is_left_is_said() -> None:
    found = stages_summary(job())
    assert found is not None
    assert found.wall_s == pytest.approx(3 + 2.5 + 0.5 + 7 + 7)
    assert found.start_s == pytest.approx(3 + 0.5), "until the last worker has started"
    assert found.reading_s == pytest.approx(2.5), "until the last worker has read"
    assert found.time_to_start_s == pytest.approx(6.0)
    assert found.num_iterations == 2
    assert found.input_s == pytest.approx(0.5)
    assert found.host_to_device_s == pytest.approx(0.125), "of one worker in one iteration, mean over workers"
    assert found.forward_s == pytest.approx(1.5 - 0.125)
    assert found.backward_s == pytest.approx(4.0)
    assert found.update_s == pytest.approx(1.5)
    stages_s = found.input_s + found.host_to_device_s + found.forward_s + found.backward_s + found.update_s
    assert found.waiting_s + found.communication_s == pytest.approx(6.0)
    total_s = found.start_s + found.reading_s + stages_s + found.waiting_s + found.communication_s
    assert found.unaccounted_s == pytest.approx(found.wall_s - total_s)


def test_times_are_virtual() -> None:
    one, four = stages_summary(job()), stages_summary(job(dilation=4.0))
    assert one is not None
    assert four is not None
    for name, value in one.model_dump(exclude={"num_iterations"}).items():
        assert getattr(four, name) == pytest.approx(value / 4)


def test_without_reading_the_job_begins_when_all_have_started() -> None:
    barriers = {name: each for name, each in BARRIERS.items() if name != "read"}
    found = stages_summary(job(barriers=barriers, stages=job().stages.filter(pl.col("stage") == "start")))
    assert found is not None
    assert found.reading_s == 0
    assert found.wall_s == pytest.approx(3 + 0.5 + 7 + 7)


@pytest.mark.parametrize("missing", ["started", "compute_only_done", "warmup", "measure", "done"])
def test_a_job_that_did_not_come_to_its_end_has_no_stages(missing: str) -> None:
    assert stages_summary(job(barriers={name: each for name, each in BARRIERS.items() if name != missing})) is None
    assert stages_summary(facts()) is None


def test_what_no_stage_accounts_for_is_noted() -> None:
    quiet, lost = job(), job(barriers=BARRIERS | {"done": Barrier(45.0, 45.0)})
    assert "in none of its stages" not in " ".join(judge(quiet, measure(quiet)).notes)
    assert "in none of its stages (limit 3 %)" in " ".join(judge(lost, measure(lost)).notes)
    assert judge(lost, measure(lost)).outcome == judge(quiet, measure(quiet)).outcome


def test_what_was_read_before_the_first_iteration_is_compared_with_the_links() -> None:
    reading = [
        LINK,
        *(
            type(LINK)(**{name: getattr(LINK, name) for name in LINK.__dataclass_fields__} | changes)
            for changes in ({"class_bytes_end": 70_000_000}, {"expected_bytes": None})
        ),
    ]
    found = job(reading=reading)
    verdict = judge(found, measure(found))
    assert verdict.outcome == "invalid"
    assert any("before the first iteration, bytes on the wire differ" in reason for reason in verdict.reasons)
    summary = storage_summary(found)
    assert summary is not None
    assert summary.num_checked == 2


@pytest.mark.parametrize(("share", "outcome"), [(0.0, "valid"), (0.1, "degraded"), (0.3, "invalid")])
def test_a_storage_node_that_waits_for_cores_is_judged(share: float, outcome: str) -> None:
    storage = StorageFacts(
        text="d0", start_bytes=0, start_least_s=0.0, batch_bytes=9, batch_least_s=1.0, waited_share=share
    )
    found = facts(storage=storage)
    verdict = judge(found, measure(found))
    assert verdict.outcome == outcome
    assert ("the storage node waited" in " ".join(verdict.reasons)) == (share > 0)


def test_batches_are_counted_in_the_measured_iterations() -> None:
    batches = stages((0, "batch", 29.0, 30.0, 9), (0, "batch", 30.0, 30.5, 9), (1, "batch", 20.0, 28.0, 9))
    found = storage_summary(job(stages=batches))
    assert found is not None
    assert found.batch_read_s == pytest.approx(1.5 / 2), "pieces of one are added; the third came before"
    assert storage_summary(facts()) is None
