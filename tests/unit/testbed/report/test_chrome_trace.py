"""The trace is what the format asks for, and holds the run's numbers."""

import gzip
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.record.frames import CHANGE_SCHEMA, STAGE_SCHEMA
from testbed.record.reader import Record
from testbed.report.chrome_trace import chrome_trace, write_trace

Make = Callable[..., Record]
REQUIRED = {
    "X": {"name", "ph", "pid", "tid", "ts", "dur"},
    "C": {"name", "ph", "pid", "ts", "args"},
    "i": {"name", "ph", "pid", "tid", "ts", "s"},
    "M": {"name", "ph", "pid", "tid", "args"},
}
"""By the format's document; `args` of a span may be left out."""


def events(record: Record, phase: str = "X") -> list[dict[str, Any]]:
    return [event for event in chrome_trace(record)["traceEvents"] if event["ph"] == phase]


def named(record: Record, name: str) -> list[dict[str, Any]]:
    return [event for event in events(record) if event["name"] == name]


@pytest.fixture
def everything(record: Make) -> Record:
    """With changes and background flows."""
    plain = record(num_iterations=5)
    shutil.rmtree(plain.path)
    at_s = float(plain.iterations.filter(pl.col("phase") == "measured")["start_s"][0]) + 0.5
    row = {"link": "w1-s0", "node": "w1", "to": "s0", "setting": "rate", "before": "100mbit", "after": "50mbit"}
    rows = [{**row, "at_s": at_s, "rate_bps": 50e6, "source": source} for source in ("schedule", "trace")]
    loaded = record(num_iterations=5, changes=pl.DataFrame(rows, schema=CHANGE_SCHEMA))
    flows = (
        "background:\n"
        "- {kind: constant, from: w0, to: w1, rate: 20mbit, start: 500ms, stop: 1s}\n"
        "- {kind: bulk, from: w1, to: w2}\n"
        "- {kind: bulk, from: w1, to: w2, start: 1h}\n"
    )
    return replace(loaded, spec_yaml=loaded.spec_yaml + flows)


def test_every_event_has_the_fields_of_its_kind_and_time_never_goes_back(everything: Record) -> None:
    found = chrome_trace(everything)["traceEvents"]
    assert {event["ph"] for event in found} == set(REQUIRED)
    for event in found:
        assert event.keys() - {"args"} == REQUIRED[event["ph"]] - {"args"}
        assert event.keys() >= REQUIRED[event["ph"]]
    timed = [event for event in found if event["ph"] != "M"]
    assert all(earlier["ts"] <= later["ts"] for earlier, later in pairwise(timed))
    assert timed[0]["ts"] == 0
    assert all(event["dur"] >= 0 for event in timed if event["ph"] == "X")
    assert all(event["s"] in "gpt" for event in timed if event["ph"] == "i")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(("host_cost", "times_as_long"), [("faster", 0.25), ("real", 1.0)])
def test_what_codecs_took_is_cpu_time_of_the_spec_s_hosts(record: Make, host_cost: str, times_as_long: float) -> None:
    loaded = record(num_iterations=2, dilation=4.0)
    spec = f"{loaded.spec_yaml}dilation: 4\nhost_cost: {host_cost}\n"
    codecs = {
        (event["args"]["encode_us"], event["args"]["decode_us"])
        for event in named(replace(loaded, spec_yaml=spec), "bucket 0")
    }
    assert codecs == {(times_as_long * 2000, times_as_long * 1000)}


@pytest.mark.parametrize("num_workers", [2, 16])
def test_spans_of_a_thread_lie_side_by_side_or_inside_each_other(record: Make, num_workers: int) -> None:
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events(record(num_workers=num_workers, num_iterations=3)):
        threads[event["pid"], event["tid"]].append((event["ts"], round(event["ts"] + event["dur"], 3)))
    for spans in threads.values():
        open_: list[float] = []
        for begin, end in spans:
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)


def test_buckets_in_service_at_once_have_threads_of_their_own(record: Make) -> None:
    loaded = record(num_iterations=2)
    together = replace(loaded, buckets=loaded.buckets.with_columns(pl.col("enqueued_s").alias("started_s")))
    names = {event["args"]["name"] for event in events(together, "M") if event["name"] == "thread_name"}
    assert {"compute", "communication", "communication 2"} <= names
    assert "buckets that wait" not in names


@pytest.mark.parametrize("dilation", [1.0, 10.0])
def test_sums_agree_with_the_summary(record: Make, dilation: float) -> None:
    loaded = record(num_iterations=7, dilation=dilation, rate_bps=100e6 * dilation)
    wholes = [event for event in events(loaded) if event.get("args", {}).get("phase") == "measured"]
    iterations = [event for event in wholes if event["name"].startswith("iteration ")]
    begin, end = min(event["ts"] for event in iterations), max(event["ts"] + event["dur"] for event in iterations)
    inside = [event for event in events(loaded) if event["tid"] == 1 and begin <= event["ts"] < end]
    summary, sums = loaded.summary, defaultdict[str, float](float)
    for event in inside:
        sums[event["name"]] += event["dur"] / (4 * 7)
    for name, time_s in (
        ("waiting for slower workers", summary.waiting_time_s),
        ("exposed communication", summary.exposed_communication_s),
        ("optimizer", summary.optimizer_time_s),
        ("data", summary.data_time_s),
    ):
        assert time_s is not None
        assert sums[name] == pytest.approx(1e6 * time_s, rel=1e-5, abs=0.1), name
    assert summary.compute_time_s is not None
    assert sums["forward"] + sums["backward"] == pytest.approx(1e6 * summary.compute_time_s, rel=1e-5)
    buckets = [event for event in wholes if event["name"].startswith("bucket ")]
    assert {event["name"] for event in buckets} == {f"bucket {number}" for number in range(4)}
    assert summary.allreduce is not None
    assert sum(event["args"]["size_bytes"] for event in buckets) == 7 * 4 * summary.allreduce.size_bytes


def test_starting_and_reading_come_before_the_iterations(record: Make) -> None:
    loaded = record(num_iterations=2, dilation=2.0)
    rows = [(0, "start", -3.0, 1.0, 0), (0, "reading", 1.0, 2.0, 500), (1, "batch", 2.5, 2.75, 50)]
    staged = replace(loaded, stages=pl.DataFrame(rows, schema=STAGE_SCHEMA, orient="row"))
    found = {event["name"]: event for event in events(staged) if event["name"] in ("start", "reading", "batch")}
    assert {name: (event["pid"], event["tid"], event["ts"], event["dur"]) for name, event in found.items()} == {
        "start": (1, 1, 0.0, 2e6),
        "reading": (1, 50, 2e6, 5e5),
        "batch": (2, 50, 2.75e6, 1.25e5),
    }
    assert found["reading"]["args"] == {"size_bytes": 500}
    assert {event["args"]["name"] for event in events(staged, "M") if event["name"] == "thread_name"} >= {"storage"}
    assert min(event["ts"] for event in events(loaded)) == 0, "a record of before begins with its first iteration"


def test_a_group_s_running_number_is_not_a_bucket_s(record: Make) -> None:
    loaded = record(num_iterations=2)
    later = replace(loaded, buckets=loaded.buckets.with_columns(pl.col("sequence") + 100))
    assert chrome_trace(later) == chrome_trace(loaded)


def test_counters_hold_what_each_direction_carried(everything: Record) -> None:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events(everything, "C"):
        found[event["name"]].append(event)
    assert len(found) == 2 * len(everything.summary.links)
    used = found["w0 → s0 utilization"]
    carried = sum(a["args"]["%"] / 100 * (b["ts"] - a["ts"]) * 100 / 8 for a, b in pairwise(used))
    counted = everything.links.filter((pl.col("link") == "w0-s0") & (pl.col("node") == "w0"))["class_bytes"]
    assert carried == pytest.approx(counted.max(), rel=0.05)
    assert found["w1 → s0 utilization"][-2]["args"]["%"] == pytest.approx(2 * used[-2]["args"]["%"], abs=0.1)
    assert {event["args"]["bytes"] for event in found["s0 → w3 backlog"]} == {0}


def test_changes_are_marks_and_background_flows_are_spans(everything: Record) -> None:
    marks = events(everything, "i")
    assert [mark["s"] for mark in marks] == ["g", "t"], "steps of a trace are not drawn across everything"
    assert {mark["name"] for mark in marks} == {"w1 → s0: rate 100mbit → 50mbit"}
    flows = [event for event in events(everything) if event.get("args", {}).get("kind")]
    assert [flow["name"].partition(":")[0] for flow in flows] == ["w1 → w2", "w0 → w1"], "the third never began"
    always, timed = flows
    origin = min(event["ts"] for event in named(everything, "warm-up 0"))
    alone = [*named(everything, "compute alone 7"), *named(everything, "compute only 7")]
    assert origin > max(event["ts"] for event in alone)
    assert always["ts"] == 0
    assert timed["ts"] == pytest.approx(origin + 500e3, abs=0.01)
    assert timed["dur"] == pytest.approx(500e3, abs=0.01)


def test_every_worker_is_a_process_and_the_network_is_the_last(record: Make) -> None:
    found = [event for event in events(record(num_workers=3, num_iterations=2), "M") if event["name"] == "process_name"]
    assert [(event["pid"], event["args"]["name"]) for event in found] == [
        (1, "w0"),
        (2, "w1"),
        (3, "w2"),
        (4, "network"),
    ]


def test_it_is_written_compressed_where_the_name_says_so(record: Make, tmp_path: Path) -> None:
    loaded = record(num_iterations=2)
    plain = write_trace(loaded, tmp_path / "trace.json")
    packed = write_trace(loaded, tmp_path / "trace.json.gz")
    assert json.loads(plain.read_bytes()) == json.loads(gzip.decompress(packed.read_bytes())) == chrome_trace(loaded)
    assert packed.stat().st_size < plain.stat().st_size / 4


def test_what_cannot_be_is_refused(record: Make, tmp_path: Path) -> None:
    loaded = record(num_iterations=2)
    with pytest.raises(SpecError, match="the run left no iteration"):
        chrome_trace(replace(loaded, iterations=loaded.iterations.clear()))
    with pytest.raises(MissingRequirementError, match="cannot write"):
        write_trace(loaded, tmp_path / "missing" / "trace.json")


def test_buckets_are_described_as_torchs_profiler_describes_an_all_reduce(record: Make) -> None:
    loaded = record(num_workers=4, num_iterations=3)
    found = [event["args"] for event in events(loaded) if "size_bytes" in event.get("args", {})]
    assert len(found) == loaded.buckets.height
    for arguments in found:
        assert arguments["Collective name"] == "allreduce"
        assert arguments["In msg nelems"] == arguments["Out msg nelems"] == arguments["size_bytes"] / 4
        assert (arguments["dtype"], arguments["Group size"]) == ("Float", 4)
        assert arguments["Process Group Ranks"] == "[0, 1, 2, 3]"


def test_a_push_and_pull_of_one_worker_is_described_as_no_collective(record: Make) -> None:
    loaded = record(num_iterations=2, synchronisation="asynchronous", exchanges_always=False, in_step=False)
    found = [event["args"] for event in events(loaded) if "size_bytes" in event.get("args", {})]
    assert len(found) == loaded.buckets.height
    assert not any("Collective name" in arguments for arguments in found)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "spec.yaml: not a mapping"),
        ("workload: [", "spec.yaml: "),
        ("workload: nothing_known", "nothing_known"),
        ("background: [{kind: nothing_known}]", "nothing_known"),
    ],
)
def test_a_spec_that_says_nothing_is_refused(record: Make, spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        chrome_trace(replace(record(), spec_yaml=spec))
