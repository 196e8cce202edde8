"""A record's events in Chrome's trace format, for ui.perfetto.dev and chrome://tracing. Pure.

Format: "Trace Event Format" (Chromium project, 2016), the form with a JSON object. Times are virtual microseconds since
the workers were started (in older records, since the first iteration began). There is a process for each worker, with a
thread for computation, one for communication (more where a stack works on several buckets at once), one for what is
read from the storage node, and as many as are needed for buckets that wait; and a process for the network, with
counters of each link direction, changes as instants and background flows as spans.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import yaml

from testbed.errors import SpecError, as_spec_errors
from testbed.experiment.background.base import BACKGROUNDS, Background
from testbed.experiment.clock import Clock
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.workloads.base import WORKLOADS
from testbed.record.frames import iteration_parts, last_ready_s
from testbed.record.reader import Record
from testbed.record.writer import replace_bytes
from testbed.report.lanes import Lanes
from testbed.traces.formats.kineto import COLLECTIVE_NAMES, TORCH_TYPES
from testbed.traces.graph import Collective, Compute, Exchange, Graph, Place, Send
from testbed.verdict.changes import RateHistory

Event = dict[str, Any]

_NETWORK: Final = "network"
_CHANGES_THREAD: Final = 1
_COMPUTE_THREAD: Final = 1
_STORAGE_THREAD: Final = 50
_COMMUNICATION_THREAD: Final = 100
_WAITING_THREAD: Final = 10_000
_PHASES: Final = {
    "compute_alone": "compute alone",
    "compute_only": "compute only",
    "warmup": "warm-up",
    "measured": "iteration",
}


def write_trace(record: Record, path: Path) -> Path:
    """Write the trace, compressed where the name ends in `.gz`, and return its path.

    Raises SpecError where the run left no iteration, and MissingRequirementError where the file cannot be written.
    """
    text = json.dumps(chrome_trace(record), separators=(",", ":"), allow_nan=False)
    data = text.encode()
    replace_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def chrome_trace(record: Record) -> dict[str, Any]:
    """The trace as JSON would hold it. Raises SpecError where the run left no iteration, or no spec."""
    if record.iterations.is_empty():
        raise SpecError(f"{record.path}: the run left no iteration, so that there is nothing to trace; see its logs")
    spec = _spec(record)
    clock = _Clock(record, spec)
    with as_spec_errors():
        exchanges = _Exchanges(record, spec)
        flows = [BACKGROUNDS.parse(flow) for flow in spec.get("background") or ()]
    events = [
        *_stages(record, clock),
        *_iterations(record, clock),
        *_buckets(record, clock, exchanges),
        *_links(record, clock),
        *_changes(record, clock),
        *_background(record, clock, flows),
    ]
    # The longer first, so that a span comes before those inside it.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    summary = record.summary
    return {
        "traceEvents": [*_names(record, events), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "name": summary.name,
            "run_id": summary.run_id,
            "outcome": summary.outcome,
            "dilation": summary.dilation,
        },
    }


def _spec(record: Record) -> Mapping[str, Any]:
    path = record.path / "spec.yaml"
    try:
        spec = yaml.safe_load(record.spec_yaml)
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(spec, dict):
        raise SpecError(f"{path}: not a mapping")
    return spec


class _Clock:
    """From the record's wall seconds to the trace's virtual microseconds, in whole nanoseconds so that spans nest."""

    def __init__(self, record: Record, spec: Mapping[str, Any]) -> None:
        begins_s = [*record.stages["begin_s"].to_list(), *record.iterations["start_s"].to_list()]
        self.start_s = float(min(begins_s))
        self.end_s = float(record.iterations["end_s"].max())  # type: ignore[arg-type]
        self._dilation = record.summary.dilation
        self._of_hosts = Clock(record.summary.dilation).of_hosts(spec.get("host_cost", "faster"))

    def us(self, at_s: float) -> float:
        return round(1e6 * (at_s - self.start_s) / self._dilation, 3)

    def cpu_us(self, cpu_s: float) -> float:
        """A worker's CPU time."""
        return round(1e6 * self._of_hosts.virtual_s(cpu_s), 3)

    def span(self, name: str, process: int, thread: int, begin_s: float, end_s: float, **arguments: object) -> Event:
        begin_us = self.us(begin_s)
        length_us = max(0.0, round(self.us(end_s) - begin_us, 3))
        event: Event = {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": begin_us, "dur": length_us}
        return {**event, "args": arguments} if arguments else event

    def shown(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Of what has a moment, that which lies within the trace."""
        return frame.filter(pl.col("at_s").is_between(self.start_s, self.end_s)).sort("at_s", maintain_order=True)


def _worker(rank: int) -> int:
    """The process; 0 stands for none in the format."""
    return rank + 1


def _network(record: Record) -> int:
    return _worker(record.summary.num_workers)


def _iterations(record: Record, clock: _Clock) -> Iterator[Event]:
    for row in last_ready_s(record.iterations, ends_together=record.summary.ends_together).iter_rows(named=True):
        place = _worker(row["rank"]), _COMPUTE_THREAD
        known = {} if not np.isfinite(row["loss"]) else {"loss": row["loss"]}
        name = f"{_PHASES.get(row['phase'], row['phase'])} {row['index']}"
        whole = {"phase": row["phase"], "index": row["index"], "slowdown": row["slowdown"], **known}
        yield clock.span(name, *place, row["start_s"], row["end_s"], **whole)
        for part, begin_s, end_s in iteration_parts(row, last_s=row["last_s"], before_s=row["before_s"]):
            if end_s > begin_s:
                yield clock.span(part, *place, begin_s, end_s)


def _stages(record: Record, clock: _Clock) -> Iterator[Event]:
    for row in record.stages.iter_rows(named=True):
        reads = {"size_bytes": row["size_bytes"]} if row["size_bytes"] else {}
        thread = _STORAGE_THREAD if reads else _COMPUTE_THREAD
        yield clock.span(row["stage"], _worker(row["rank"]), thread, row["begin_s"], row["end_s"], **reads)


class _Exchanges:
    """What was exchanged, in the words of torch's profiler (testbed/traces/formats/kineto.py)."""

    def __init__(self, record: Record, spec: Mapping[str, Any]) -> None:
        self._graph = WORKLOADS.parse(spec.get("workload", "training")).graph()
        self._num_workers = record.summary.num_workers
        self._in_step = record.summary.in_step

    def name(self, rank: int, row: Mapping[str, Any], number: int) -> str:
        """Of a bucket that is that many in its iteration; of a graph's exchange its own."""
        if self._graph is None:
            return f"bucket {number}"
        return self._node(self._graph, rank, row["sequence"]).name or f"exchange {row['sequence']}"

    def arguments(self, rank: int, row: Mapping[str, Any]) -> dict[str, object]:
        """A bucket of gradients is an all-reduce of float32, whatever becomes of it on its way; between servers and a
        worker that goes on without the others it is no collective."""
        if self._graph is None:
            if not self._in_step:
                return {}
            count = row["size_bytes"] // GRADIENT_ELEMENT_BYTES
            return self._described("allreduce", count, count, "float32", range(self._num_workers))
        node = self._node(self._graph, rank, row["sequence"])
        if isinstance(node, Collective):
            return self._collective(self._graph, rank, node, self._graph.matches[row["sequence"]])
        pair = sorted((rank, node.peer))
        if isinstance(node, Send):
            described = self._described("send", node.num_elements, 0, node.element_type, pair)
            return {**described, "Dst Rank": node.peer}
        return {**self._described("recv", 0, node.num_elements, node.element_type, pair), "Src Rank": node.peer}

    def _collective(self, graph: Graph, rank: int, node: Collective, match: Sequence[Place]) -> dict[str, object]:
        members = graph.groups[node.group]
        whole, part = node.num_elements, node.num_elements // len(members)
        root = {} if node.root is None else {"Root Rank": node.root}
        given = {"all_gather": part, "gather": part, "scatter": whole if node.root == rank else 0}
        made = {"reduce_scatter": part, "scatter": part, "gather": whole if node.root == rank else 0}
        splits = {}
        if node.splits is not None:
            got = [graph.num_given(place, rank) for place in match]
            splits = {"In split size": str(list(node.splits)), "Out split size": str(got)}
            made[node.operation] = sum(got)
        described = self._described(
            COLLECTIVE_NAMES[node.operation],
            given.get(node.operation, whole),
            made.get(node.operation, whole),
            node.element_type,
            members,
        )
        return {**described, **root, **splits}

    @staticmethod
    def _described(
        name: str, num_given: int, num_made: int, element_type: str, members: Sequence[int]
    ) -> dict[str, object]:
        return {
            "Collective name": name,
            "In msg nelems": num_given,
            "Out msg nelems": num_made,
            "dtype": TORCH_TYPES[element_type],
            "Group size": len(members),
            "Process Group Ranks": str(list(members)),
        }

    @staticmethod
    def _node(graph: Graph, rank: int, sequence: int) -> Exchange:
        """The rank's part of a match."""
        node = next(graph.node(place) for place in graph.matches[sequence] if place[0] == rank)
        assert not isinstance(node, Compute), "only exchanges are matched"
        return node


def _buckets(record: Record, clock: _Clock, exchanges: _Exchanges) -> Iterator[Event]:
    for (rank,), buckets in record.buckets.sort("rank", "enqueued_s").group_by("rank", maintain_order=True):
        process = _worker(int(rank))
        waiting, serving = Lanes(), Lanes()
        first: dict[tuple[str, int], int] = {}
        for row in buckets.iter_rows(named=True):
            # A group counts its operations from its beginning; a reader counts the buckets of an iteration.
            number = row["sequence"] - first.setdefault((row["phase"], row["index"]), row["sequence"])
            name = exchanges.name(process - 1, row, number)
            if row["started_s"] > row["enqueued_s"]:
                thread = _WAITING_THREAD + waiting.take(row["enqueued_s"], row["started_s"])
                yield clock.span(f"{name} waits", process, thread, row["enqueued_s"], row["started_s"])
            thread = _COMMUNICATION_THREAD + serving.take(row["started_s"], row["done_s"])
            yield clock.span(
                name,
                process,
                thread,
                row["started_s"],
                row["done_s"],
                phase=row["phase"],
                index=row["index"],
                size_bytes=row["size_bytes"],
                payload_bytes=row["payload_bytes"],
                encode_us=clock.cpu_us(row["encode_s"]),
                decode_us=clock.cpu_us(row["decode_s"]),
                **exchanges.arguments(process - 1, row),
            )
            if row["first_byte_s"] > row["started_s"]:
                yield clock.span("until first byte", process, thread, row["started_s"], row["first_byte_s"])


def _links(record: Record, clock: _Clock) -> Iterator[Event]:
    """Utilization holds from a sample to the next; backlog is what a sample found."""
    process = _network(record)
    for link in record.summary.links:
        mine = (pl.col("link") == link.name) & (pl.col("node") == link.from_)
        frame = clock.shown(record.links.filter(mine))
        at_s = frame["at_s"].to_numpy()
        if len(at_s) < 2:
            continue
        title = f"{link.from_} \u2192 {link.to}"
        if link.utilization_mean is not None:
            history = RateHistory(record.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
            could_bits = np.maximum(history.bits(at_s[:-1], at_s[1:]), 1.0)
            carried_bits = record.summary.dilation * 8 * np.diff(frame["class_bytes"].to_numpy())
            for begin_s, percent in zip(at_s[:-1], 100 * carried_bits / could_bits, strict=True):
                yield _counter(f"{title} utilization", process, clock.us(float(begin_s)), "%", round(float(percent), 2))
        for when_s, backlog_bytes in zip(at_s, frame["backlog_bytes"].to_list(), strict=True):
            yield _counter(f"{title} backlog", process, clock.us(float(when_s)), "bytes", backlog_bytes)


def _counter(name: str, process: int, at_us: float, unit: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": process, "ts": at_us, "args": {unit: value}}


def _changes(record: Record, clock: _Clock) -> Iterator[Event]:
    for row in clock.shown(record.changes).iter_rows(named=True):
        yield {
            "ph": "i",
            "name": f"{row['node']} \u2192 {row['to']}: {row['setting']} {row['before']} \u2192 {row['after']}",
            "pid": _network(record),
            "tid": _CHANGES_THREAD,
            "ts": clock.us(row["at_s"]),
            # A trace has many steps; the others are seen across all processes.
            "s": "t" if row["source"] == "trace" else "g",
            "args": {"source": row["source"], "rate_bps": row["rate_bps"]},
        }


def _background(record: Record, clock: _Clock, flows: Sequence[Background]) -> Iterator[Event]:
    """From when to when each background flow was configured to send."""
    communicating = record.iterations.filter(pl.col("phase").is_in(["warmup", "measured"]))["start_s"]
    origin_s = clock.end_s if communicating.is_empty() else float(communicating.min())  # type: ignore[arg-type]
    for number, flow in enumerate(flows):
        begin_s = origin_s + flow.start_s * record.summary.dilation if flow.start_s else clock.start_s
        stop_s = flow.stop_s
        end_s = clock.end_s if stop_s is None else min(clock.end_s, origin_s + stop_s * record.summary.dilation)
        if begin_s < end_s:
            name = f"{flow.from_} \u2192 {flow.to}: {flow.text()}"
            thread = _CHANGES_THREAD + 1 + number
            yield clock.span(name, _network(record), thread, begin_s, end_s, kind=flow.kind)


def _names(record: Record, events: Iterable[Event]) -> Iterator[Event]:
    """What processes and threads are called, and in which order they are shown."""
    network = _network(record)
    threads = sorted({(event["pid"], event["tid"]) for event in events if "tid" in event})
    for process in sorted({event["pid"] for event in events}):
        name = _NETWORK if process == network else f"w{process - 1}"
        yield _metadata("process_name", process, name=name)
        yield _metadata("process_sort_index", process, sort_index=process)
    for process, thread in threads:
        name = _network_thread(thread) if process == network else _worker_thread(thread)
        yield _metadata("thread_name", process, thread, name=name)
        yield _metadata("thread_sort_index", process, thread, sort_index=thread)


def _worker_thread(thread: int) -> str:
    for first, name in ((_WAITING_THREAD, "buckets that wait"), (_COMMUNICATION_THREAD, "communication")):
        if thread >= first:
            return name if thread == first else f"{name} {thread - first + 1}"
    return "storage" if thread == _STORAGE_THREAD else "compute"


def _network_thread(thread: int) -> str:
    return "changes" if thread == _CHANGES_THREAD else f"background flow {thread - _CHANGES_THREAD - 1}"


def _metadata(name: str, process: int, thread: int = 0, /, **arguments: object) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}
