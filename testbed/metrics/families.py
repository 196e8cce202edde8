"""Every metric of a run's page: name, kind, labels, meaning. docs/metrics.md holds the same table.

Names follow https://prometheus.io/docs/practices/naming/: base units (seconds, bytes), `_total` on what only grows.
Every series carries the label `run`, the run's id.
"""

from dataclasses import dataclass
from typing import Final, Literal

PORT: Final = 9464
"""Where a run's page is looked for first, by docker/prometheus.yml for one."""
Kind = Literal["counter", "gauge", "summary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One metric."""

    name: str
    """As on the page, `_total` included."""
    kind: Kind
    labels: tuple[str, ...]
    """Without `run`."""
    text: str
    """Its HELP line."""
    source: str
    """Where the number comes from."""


_DIRECTION: Final = ("link", "node", "port")
"""One direction of a link: its name, the sending node, that node's interface."""
_LINK: Final = ("link", "node")
"""The same without the interface."""
_LINE: Final = "HTB class of the sending port, or the relay of `tap`"
_WORKER: Final = "the worker's own clock, iteration by iteration; virtual seconds"

LINK_TRANSMIT_BYTES: Final = Family(
    name="testbed_link_transmit_bytes_total",
    kind="counter",
    labels=_DIRECTION,
    text="Bytes sent by what shapes the link, headers of every segment included.",
    source=_LINE,
)
LINK_TRANSMIT_PACKETS: Final = Family(
    name="testbed_link_transmit_packets_total",
    kind="counter",
    labels=_DIRECTION,
    text="Packets sent by what shapes the link; segments, where super-frames were sent.",
    source=_LINE,
)
LINK_DROPS: Final = Family(
    name="testbed_link_drops_total",
    kind="counter",
    labels=_DIRECTION,
    text="Packets dropped because the link's queue was full.",
    source=_LINE,
)
LINK_BACKLOG: Final = Family(
    name="testbed_link_backlog_bytes",
    kind="gauge",
    labels=_DIRECTION,
    text="Bytes waiting in the link's queue.",
    source=_LINE,
)
LINK_RATE: Final = Family(
    name="testbed_link_rate_bytes_per_second",
    kind="gauge",
    labels=_DIRECTION,
    text="The rate that is configured for the link now; bytes for each virtual second.",
    source="the plan, and what changed since",
)
LINK_UTILIZATION: Final = Family(
    name="testbed_link_utilization_ratio",
    kind="gauge",
    labels=_DIRECTION,
    text="Sent over possible between the last two samples, 0 to 1.",
    source=f"{_LINE}, two samples",
)
LINKS_READ: Final = Family(
    name="testbed_links_read_timestamp_seconds",
    kind="gauge",
    labels=(),
    text="When the counters of links on this page had been read; Unix time.",
    source="the sampler's clock, set to the wall's when the run began",
)
LINK_BACKLOGGED_DUE: Final = Family(
    name="testbed_link_backlogged_due_bytes_total",
    kind="counter",
    labels=_LINK,
    text="What the link should have sent while it was watched with packets surely waiting: rate x time.",
    source="probes of links whose queue holds packets",
)
LINK_BACKLOGGED_SENT: Final = Family(
    name="testbed_link_backlogged_sent_bytes_total",
    kind="counter",
    labels=_LINK,
    text="What it did send in that time; less means that the machine, not the link, was slow.",
    source="probes of links whose queue holds packets",
)
LINK_CHANGES: Final = Family(
    name="testbed_link_changes_total",
    kind="counter",
    labels=("link", "node", "source"),
    text="Settings of the link that were changed while the run went on, by what changed them.",
    source="the spec's `changes`, or `testbed link set`",
)
DELAY_LINE_LATE: Final = Family(
    name="testbed_delay_line_late_seconds",
    kind="summary",
    labels=(*_LINK, "quantile"),
    text="How much later than requested packets were let go since the link was made.",
    source="the program that delays packets (backends nfqueue, tap), read at each scrape",
)
DELAY_LINE_DROPS: Final = Family(
    name="testbed_delay_line_drops_total",
    kind="counter",
    labels=_LINK,
    text="Packets that the program that delays them had no room for: an error of the emulation.",
    source="the program that delays packets (backends nfqueue, tap), read at each scrape",
)
ITERATION: Final = Family(
    name="testbed_iteration_seconds",
    kind="summary",
    labels=("worker",),
    text="Measured training iterations of the worker.",
    source=_WORKER,
)
ITERATION_PART_NAMES: Final = ("compute", "data", "waiting", "exposed_communication", "optimizer", "other")
"""As docs/definitions.md has them."""
ITERATION_PARTS: Final = Family(
    name="testbed_iteration_part_seconds_total",
    kind="counter",
    labels=("worker", "part"),
    text="Time of measured iterations by what it went into: compute, data, waiting (for slower workers), "
    "exposed_communication, optimizer, other.",
    source=_WORKER,
)
LAST_ITERATION: Final = Family(
    name="testbed_last_iteration_timestamp_seconds",
    kind="gauge",
    labels=("worker",),
    text="When the worker's last iteration of any phase was reported; Unix time.",
    source="the coordinator's clock",
)
LOSS: Final = Family(
    name="testbed_loss",
    kind="gauge",
    labels=("worker",),
    text="Training loss of the worker's last measured iteration.",
    source="the worker",
)
SERVICE: Final = Family(
    name="testbed_communication_service_seconds_total",
    kind="counter",
    labels=("worker",),
    text="Time of measured iterations in which at least one bucket of the worker was in service; wall seconds.",
    source="moments at which buckets began and ended",
)
RUN_QUEUE: Final = Family(
    name="testbed_communication_run_queue_seconds_total",
    kind="counter",
    labels=("worker",),
    text="Time for which the thread that moves the worker's gradients waited for a core; wall seconds.",
    source="/proc/<pid>/task/<tid>/schedstat",
)
RUN_QUEUE_BEYOND_BOUND: Final = Family(
    name="testbed_communication_run_queue_beyond_bound_seconds_total",
    kind="counter",
    labels=("worker",),
    text="That waiting, added up over the worker's threads, of each measured iteration no more than its buckets took "
    "beyond what links need at their first rate; wall seconds. Not the verdict's number, which counts threads of all "
    "hosts that wait together once, and servers' threads, and those that compute.",
    source="the two above and the bound of the schedule",
)
CPU: Final = Family(
    name="testbed_machine_cpu_seconds_total",
    kind="counter",
    labels=("mode",),
    text="Time of all cores since boot: busy, idle, steal (taken by the hypervisor).",
    source="/proc/stat",
)
SOFTNET_DROPS: Final = Family(
    name="testbed_machine_softnet_drops_total",
    kind="counter",
    labels=(),
    text="Packets that found the kernel's input queue full, which is no link's queue.",
    source="/proc/net/softnet_stat",
)
DILATION: Final = Family(
    name="testbed_dilation_ratio",
    kind="gauge",
    labels=(),
    text="How many times slower time runs: seconds on the wall for each virtual one.",
    source="the plan",
)
RUN_INFO: Final = Family(
    name="testbed_run_info",
    kind="gauge",
    labels=("name",),
    text="The run and its spec's name; always 1.",
    source="the spec",
)

FAMILIES: Final = (
    LINK_TRANSMIT_BYTES,
    LINK_TRANSMIT_PACKETS,
    LINK_DROPS,
    LINK_BACKLOG,
    LINK_RATE,
    LINK_UTILIZATION,
    LINKS_READ,
    LINK_BACKLOGGED_DUE,
    LINK_BACKLOGGED_SENT,
    LINK_CHANGES,
    DELAY_LINE_LATE,
    DELAY_LINE_DROPS,
    ITERATION,
    ITERATION_PARTS,
    LAST_ITERATION,
    LOSS,
    SERVICE,
    RUN_QUEUE,
    RUN_QUEUE_BEYOND_BOUND,
    CPU,
    SOFTNET_DROPS,
    DILATION,
    RUN_INFO,
)


def max_series(num_directions: int, num_workers: int) -> int:
    """How many series a page has at most: with a delay line and a queue that was full on every direction, before
    anybody changes links (one more for each direction changed, and each source of changes) and without aggregators
    (switch_agg.metrics)."""
    by_direction = 6 + 2 + 5  # counters and gauges; probes; three quantiles, their count, drops
    by_worker = 2 + len(ITERATION_PART_NAMES) + 5  # sum, count; parts; last iteration, loss, communication
    return num_directions * by_direction + num_workers * by_worker + 1 + 3 + 1 + 1 + 1
