"""What a person sees of an aggregator."""

import io
from dataclasses import replace

from rich.console import Console

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.job import Job
from switch_agg.status import JobStatus, Status
from switch_agg.view import MEANINGS, render

JOB = JobStatus(
    job=Job(number=3, workers=("10.0.0.1", "10.0.0.2"), num_elements=256, payload="int8", num_slots=128),
    epoch=2,
    stragglers=Stragglers(gaps=(0,) * 10 + (90, 10) + (0,) * 20, last=(25, 75)),
    busy_slots=37,
)
STATUS = Status(
    dataplane="ebpf",
    address="10.0.0.9:48864",
    jobs=(JOB,),
    counters=dict.fromkeys(Counters.__slots__, 0) | {"rx": 1210, "fresh": 1200, "stale": 10, "done": 600},
    in_flight=41,
    violations=(),
    uptime_s=10.0,
    link_rate_bps=1e8,
)


def shown(status: Status, before: Status | None = None, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(status, before))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_every_counter_has_a_meaning_or_follows_from_others() -> None:
    assert set(Counters.__slots__) - set(MEANINGS) == {"contributions_done"}


def test_a_look_fits_a_terminal_of_80_columns_and_says_who_is_last() -> None:
    lines = shown(STATUS)
    (job,) = [line for line in lines if "1024 int8" in line]
    assert " ".join(job.split()) == "3 2 1024 int8 37 of 128 2"
    waits = "job 3 waits < 1.02 ms for a chunk's last part (median; p99 < 2.05 ms); 10.0.0.2 is last in 75%"
    assert waits in " ".join(" ".join(lines).split())
    assert [line.split()[:2] for line in lines if line.startswith(("rx", "  fresh", "  stale", "done"))] == [
        ["rx", "1,210"],
        ["fresh", "1,200"],
        ["stale", "10"],
        ["done", "600"],
    ]
    assert not any("late" in line for line in lines), "what never happened takes no line"


def test_two_looks_give_rates_and_their_share_of_the_bound() -> None:
    later = replace(
        STATUS,
        uptime_s=12.0,
        counters=STATUS.counters | {"rx": 5210},
        jobs=(replace(JOB, stragglers=replace(JOB.stragglers, gaps=(11574, *JOB.stragglers.gaps[1:]))),),
    )
    lines = shown(later, STATUS)
    (job,) = [line for line in lines if "1024 int8" in line]
    assert "5.93 M" in job
    assert "50.0%" in job, "5787 chunks a second of 1080 bytes on 100 Mbit/s"
    assert any(line.split()[:3] == ["rx", "5,210", "2,000"] for line in lines)


def test_nobody_served_says_how_to_begin() -> None:
    assert any("switch-agg configure" in line for line in shown(replace(STATUS, jobs=())))
    assert any("workers open a session" in line for line in shown(replace(STATUS, dataplane="switchml", jobs=())))
