"""An aggregator's status as people read it: `switch-agg status` and `top`. Pure."""

from typing import Final

from rich.console import Group
from rich.table import Table

from switch_agg.status import SWITCHML, JobStatus, Status

MEANINGS: Final = {
    "rx": "datagrams with elements that came, of which",
    "fresh": "a worker's part of a chunk, added",
    "duplicate_pending": "sent again before the sum was there",
    "duplicate_done": "sent again after it: answered with the sum",
    "stale": "of another epoch, or older than the slot's chunk",
    "late": "after a partial sum had been given out",
    "held": "too early: some worker may not have the sum before yet",
    "injected": "thrown away by a fault that was requested",
    "from_parent": "sums of the aggregator above",
    "bad_length": "as long as no chunk is",
    "bad_kind": "of a kind that does not exist",
    "bad_format": "of another version of the protocol",
    "bad_size": "a chunk unlike the job's: elements, payload",
    "bad_slot": "in a slot that is not the chunk's",
    "bad_job": "of a job that nobody configured",
    "bad_worker": "from an address that is no worker's",
    "control": "joining, leaving, resets and probes",
    "done": "sums given out",
    "partial": "of them without somebody's part",
    "saturated": "of them with elements clipped to 32 bits",
    "wrapped": "of them with elements wrapped around 32 bits",
    "mixed": "sums sent that are nobody's: see docs/switchml.md",
    "discarded": "parts in chunks that an epoch's end left undone",
}
"""Of the counters that are shown (switch_agg.aggregator.Counters); `contributions_done` follows from others."""

_ALWAYS: Final = frozenset({"rx", "fresh", "done"})
_INDENTED: Final = frozenset(MEANINGS) - {"rx", "control", "done", "discarded"}


def render(status: Status, before: Status | None) -> Group:
    """A status; with the one before, rates as well."""
    elapsed_s = status.uptime_s - before.uptime_s if before else 0.0
    head = Table.grid(padding=(0, 2))
    head.add_row("aggregator", f"{status.address} ({status.dataplane}), up {status.uptime_s:.0f} s")
    books = "balance" if not status.violations else "; ".join(status.violations)
    head.add_row("books", f"{books}; {status.in_flight:,} contributions in flight")
    if status.unsent:
        refused = ", ".join(f"{count:,} to {host}" for host, count in sorted(status.unsent.items()))
        head.add_row("unsent", f"{refused}: no route, an interface that is down, or a firewall")
    if not status.jobs:
        begin = "workers open a session" if status.dataplane == SWITCHML else "`switch-agg configure` makes one"
        head.add_row("jobs", f"none: {begin}")
        return Group(head, "", _counters(status, before, elapsed_s))
    waits = Table.grid(padding=(0, 2))
    for each in status.jobs:
        waits.add_row(f"job {each.job.number}", _waits(each))
    return Group(head, waits, "", _jobs(status, before, elapsed_s), "", _counters(status, before, elapsed_s))


def _jobs(status: Status, before: Status | None, elapsed_s: float) -> Table:
    known = {each.job.number: each for each in before.jobs} if before else {}
    table = _table()
    for name in ("job", "workers", "chunk", "busy slots", "epoch", "elements/s", "of bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in status.jobs:
        job, earlier = each.job, known.get(each.job.number)
        chunks = each.stragglers.chunks - earlier.stragglers.chunks if earlier else 0
        rate = chunks * job.num_values / elapsed_s if earlier and elapsed_s > 0 else None
        bound = status.bound_elements_per_s(job)
        table.add_row(
            str(job.number),
            str(job.num_workers),
            f"{job.num_values} {job.payload}",
            f"{each.busy_slots:,} of {job.num_slots:,}",
            str(each.epoch),
            "" if rate is None else _short(rate),
            "" if rate is None or not bound else f"{rate / bound:.1%}",
        )
    return table


def _counters(status: Status, before: Status | None, elapsed_s: float) -> Table:
    table = _table()
    table.add_column("counter")
    table.add_column("count", justify="right")
    table.add_column("per s", justify="right")
    table.add_column("")
    for name, meaning in MEANINGS.items():
        count = status.counters[name]
        if not count and name not in _ALWAYS:
            continue
        rate = f"{(count - before.counters[name]) / elapsed_s:,.0f}" if before and elapsed_s > 0 else ""
        table.add_row(f"{'  ' if name in _INDENTED else ''}{name}", f"{count:,}", rate, meaning)
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def _waits(each: JobStatus) -> str:
    """`waits < 4.1 ms for a chunk's last part (median; p99 < 16 ms); 10.0.0.3 comes last in 61 %`."""
    waited, last = each.stragglers.wait_s, each.stragglers.last
    if not sum(last):
        return "has added nothing yet"
    slowest = max(range(len(last)), key=last.__getitem__)
    return (
        f"waits {_waited(waited(0.5))} for a chunk's last part (median; p99 {_waited(waited(0.99))}); "
        f"{each.job.workers[slowest]} is last in {last[slowest] / sum(last):.0%}"
    )


def _waited(edge_s: float | None) -> str:
    """`< 4.1 ms`."""
    if edge_s is None:
        return ""
    return f"< {edge_s * 1e6:.0f} us" if edge_s < 1e-3 else f"< {edge_s * 1e3:.3g} ms"


def _short(value: float) -> str:
    """`2.52 M`."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.0f}"
