"""One screen of summary; progress that fits where it is shown."""

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from testbed.record import number_text
from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.reader import Record
from testbed.record.summary import CommandSummary, PrometheusSummary, StagesSummary, StorageSummary
from testbed.report.terminal.summary import LiveProgress, render_summary

Make = Callable[..., Record]


def rendered(record: Record, width: int = 100) -> str:
    stream = io.StringIO()
    render_summary(record.summary, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("num_workers", [4, 16])
def test_the_summary_is_one_screen_and_cuts_nothing_off(record: Make, width: int, num_workers: int) -> None:
    made = record(num_workers=num_workers, num_iterations=5)
    # Where tests happen to write is longer than any screen is wide.
    made = replace(
        made, summary=made.summary.model_copy(update={"record": "results/quickstart-6d443f69-261121t234915"})
    )
    text = rendered(made, width)
    assert len(text.splitlines()) <= 48
    assert max(len(line.rstrip()) for line in text.splitlines()) <= min(width, 100)
    assert "\u2026" not in text, "an ellipsis is a number that cannot be read"


def test_the_summary_says_verdict_split_definition_and_path(record: Make) -> None:
    loaded = record(outcome="invalid", reasons=["w0 → s0 carried too much"], notes=["links changed"])
    text = " ".join(rendered(loaded).split())
    assert text.index("INVALID") < text.index("• w0 → s0 carried too much") < text.index("note: links changed")
    assert text.index("note: links changed") < text.index("Iteration")
    for expected in (
        "compute",
        "waiting for slower",
        "exposed communication",
        "other",
        "samples per second",
        "cost model",
        "+0.00 %",
    ):
        assert expected in text
    assert "T_n / (n T_1): samples a second of 4 workers over 4 times those of one that computes alone" in text
    assert "rates of 8 (0 measured themselves)" in text
    assert "docs/definitions.md" in text
    assert "report.html" in text


def test_more_than_eight_directions_become_ranges(record: Make) -> None:
    text = rendered(record(num_workers=16, num_iterations=3))
    assert "w0..w15 → s0" in text
    assert "s0 → w0..w15" in text
    assert "w7 → s0" not in text


def test_links_between_switches_are_groups_of_their_own_with_names_in_order(record: Make) -> None:
    loaded = record(num_workers=8, num_iterations=3)
    ends = [("s0", "s10"), ("s10", "s0"), ("s2", "s10"), ("s10", "s2"), ("s9", "s0"), ("s0", "s9")]
    trunks = [
        link.model_copy(update={"name": f"{from_}-{to}", "from_": from_, "to": to, "expected_bytes": None})
        for link, (from_, to) in zip(loaded.summary.links, ends, strict=False)
    ]
    summary = loaded.summary.model_copy(update={"links": [*loaded.summary.links, *trunks]})
    stream = io.StringIO()
    render_summary(summary, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(" s0..s10 →"))
    assert lines[first + 1].startswith(" s0..s10 ")
    assert number_text.DASH in lines[first]
    assert any(line.startswith(" w0..w7 → s0 ") for line in lines)


def test_a_failed_run_is_shown_without_numbers(record: Make) -> None:
    loaded = record(num_iterations=2)
    empty = dict.fromkeys(
        ("iteration_time_s", "samples_per_s", "scaling_factor", "network_efficiency", "loss", "allreduce")
    )
    summary = loaded.summary.model_copy(update={**empty, "outcome": "failed", "links": []})
    stream = io.StringIO()
    render_summary(summary, Console(file=stream, width=100))
    assert "No iteration was completed." in stream.getvalue()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def drive(progress: LiveProgress, clock: Clock, num_links: int = 8) -> None:
    progress.phase("deploy")
    clock.now_s = 2.0
    progress.phase("measured")
    for index in range(1, 31):
        progress.links([(f"w{link}-eth0", 0.5 + link / 100) for link in range(num_links)])
        progress.iteration("measured", index, 30, 2.0 / index)
        clock.now_s += 0.5


def test_without_a_terminal_progress_is_a_few_plain_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LiveProgress(Console(file=stream, width=100), now_s=clock)
    drive(progress, clock)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["deploy ...", "measured ..."]
    assert "\x1b" not in stream.getvalue()
    assert 3 <= len(lines) - 2 <= 6, "one every five seconds, and the last"
    assert "iteration 30/30, loss 0.06667, links 54 %, 500 ms each, 0 s to go" in lines[-1]


def test_on_a_terminal_the_display_shows_phases_position_and_links() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, width=100, force_terminal=True)
    progress = LiveProgress(console, now_s=clock)
    progress.phase("deploy")
    clock.now_s = 2.0
    progress.phase("measured")
    progress.links([("w0-eth0", 0.5), ("w1-eth0", 1.2)])
    progress.iteration("measured", 1, 30, 2.0)
    clock.now_s = 3.0
    progress.iteration("measured", 3, 30, 1.5)
    shown = io.StringIO()
    Console(file=shown, width=100).print(progress)
    progress.close()
    progress.close()
    assert "✓ deploy 2.0 s" in shown.getvalue()
    assert "▸ measured 1 s" in shown.getvalue()
    assert "iteration 3/30, loss 1.5, links 85 %, 500 ms each, 14 s to go" in shown.getvalue()
    assert "w1-eth0  ████████ 120 %" in shown.getvalue()


def test_many_links_take_one_character_each() -> None:
    clock = Clock()
    progress = LiveProgress(Console(file=io.StringIO(), width=80), now_s=clock)
    drive(progress, clock, num_links=32)
    shown = io.StringIO()
    Console(file=shown, width=80).print(progress)
    assert "w0-eth0 .. w31-eth0" in shown.getvalue()
    assert max(len(line.rstrip()) for line in shown.getvalue().splitlines()) <= 80


def test_not_enabled_is_silent() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LiveProgress(Console(file=stream, force_terminal=True), enabled=False, now_s=clock)
    drive(progress, clock)
    progress.close()
    assert stream.getvalue() == ""


def test_showing_progress_imports_neither_polars_nor_what_draws() -> None:
    heavy = {"polars", "vl_convert", "jinja2"}
    script = f"import sys, testbed.report.terminal.summary; print(sorted({heavy} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout.strip() == "[]"


def test_a_prediction_by_a_link_between_switches_is_not_called_the_cost_model(record: Make) -> None:
    loaded = record(num_iterations=3)
    assert loaded.summary.allreduce is not None
    decided = loaded.summary.allreduce.model_copy(update={"bottleneck": "s0 -> s1"})
    stream = io.StringIO()
    render_summary(loaded.summary.model_copy(update={"allreduce": decided}), Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    assert "what the bytes of s0 -> s1 need" in text
    assert "the cost model's prediction" not in text


def test_a_withheld_time_says_why_and_what_is_known_of_it(record: Make) -> None:
    loaded = record(num_iterations=3)
    assert loaded.summary.allreduce is not None
    withheld = {"time_s": None, "missing": "up to 38 % of it may have been waiting for a core"}
    stream = io.StringIO()
    summary = loaded.summary.model_copy(update={"allreduce": loaded.summary.allreduce.model_copy(update=withheld)})
    render_summary(summary, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    assert "withheld: up to 38 % of it may have been waiting for a core; the bound of the task is" in text
    assert "the cost model's prediction: " in text
    assert "None" not in text


def test_changes_are_listed_with_their_times_and_what_was_not_reached(record: Make) -> None:
    rows = [
        {"at_s": 1e3 + number, "link": "w1-s0", "node": "w1", "to": "s0", "setting": "rate", "source": "manual"}
        | {"before": f"{number}mbit", "after": f"{number + 1}mbit", "rate_bps": 1e6}
        for number in range(20)
    ]
    loaded = record(num_iterations=3, changes=pl.DataFrame(rows, schema=CHANGE_SCHEMA), num_changes_not_reached=2)
    text = " ".join(rendered(loaded).split())
    assert "w1 → s0: rate 0mbit → 1mbit, manually" in text
    assert "and 8 more, in changes.parquet" in text
    assert "2 not reached" in text


def test_compression_says_what_it_saved_and_what_it_cost(record: Make) -> None:
    facts: dict[str, Any] = {"compression": "top_k", "gradient_bytes": 4_456_448, "traffic_ratio": 0.41}
    loaded = record(num_iterations=3, **facts)
    stream = io.StringIO()
    render_summary(loaded.summary, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    assert "Compression 10.0 % top_k: 446 kB of 4.46 MB per worker; the links carry 41.0 %" in text
    assert "encoding 8 ms, decoding 4 ms of CPU time" in text


def test_stages_and_storage_are_shown(record: Make) -> None:
    stages = StagesSummary(
        wall_s=20.0, num_iterations=33, time_to_start_s=3.5, start_s=1.5, reading_s=2.0, input_s=0.0,
        host_to_device_s=0.0, forward_s=4.0, backward_s=8.0, waiting_s=0.5, communication_s=3.0, update_s=0.5,
        unaccounted_s=0.5,
    )  # fmt: skip
    storage = StorageSummary(
        requested="d0: every worker reads all", start_bytes=40_000_000, start_least_s=1.9, batch_bytes=0,
        batch_least_s=0.0, batch_read_s=None, num_checked=10, waited_share=0.0,
    )  # fmt: skip
    stream = io.StringIO()
    summary = record(num_iterations=3).summary.model_copy(update={"stages": stages, "storage": storage})
    render_summary(summary, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    assert "Stages 20 s from the launch to the end of 33 iterations: start 1.5 s, reading 2 s, forward 4 s" in text
    assert "input" not in text.partition("Stages")[2].partition("Storage")[0], "there was none"
    assert "Storage d0: every worker reads all; 40 MB in 2 s (the disk or the most loaded link needs 1.9 s)" in text


def test_what_prometheus_saw_is_reported_with_the_command_that_shows_it_again(record: Make) -> None:
    seen = PrometheusSummary(
        data="prometheus/data",
        num_scrapes=12,
        num_series=148,
        compared_s=12.0,
        differences=[],
        alerts={"LinkSaturated": 8},
    )
    summary = record(num_iterations=3).summary.model_copy(update={"prometheus": seen, "record": "results/r"})
    stream = io.StringIO()
    render_summary(summary, Console(file=stream, width=100))
    text = " ".join(stream.getvalue().split())
    assert "12 scrapes of 148 series; its counters are the record's; alerts fired: LinkSaturated (8)" in text
    assert "prometheus --config.file=/dev/null --storage.tsdb.path=results/r/prometheus/data" in text


def test_a_command_in_brackets_is_no_markup(record: Make) -> None:
    command = CommandSummary(
        argv=["[/bin/x]"], backend=None, redirected=[], launcher=False, start_s=0.0, time_s=4.2, workers=[]
    )
    made = record()
    assert "'[/bin/x]'" in rendered(replace(made, summary=made.summary.model_copy(update={"command": command})))
