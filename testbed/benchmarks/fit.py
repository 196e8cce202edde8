"""Measures what hosts add to links here, and fits the cost model's parameters to it."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from testbed.benchmarks.allreduce import allreduce_rows
from testbed.benchmarks.predictions import planned
from testbed.experiment.link import parse_link
from testbed.theory.fit import Fit, Measured, fit_costs
from transports.channels.base import CHANNELS
from transports.collectives.costs import DEFAULT_COSTS
from transports.compression.base import Exchange
from transports.errors import UnsupportedError

GROUPS: Final[dict[str, dict[str, Any]]] = {
    "two workers": {"workers": 2, "link": "1gbit,0s", "stacks": ["ring/tcp", "tree/tcp"]},
    "three workers": {
        "workers": 3,
        "link": "300mbit,500us",
        "stacks": ["ring/tcp", "all_to_all/tcp", "tree/tcp"],
    },
}
"""Links and numbers of workers that no validation uses. In a tree's messages one worker sends and the other waits; in a
ring's and in rounds all do both at once. Without either, what a message, a byte and an addition cost is not decided."""
SIZES: Final = ("64MiB", "16MiB", "4MiB", "1MiB", "256KiB", "64KiB", "16KiB", "4KiB")
"""The long ones first: young connections hold back what is longer than their window."""
CHANNEL_SIZES: Final = SIZES[2:]
OTHER_CHANNELS: Final = ("udp", "grpc", "grpc_bulk", "quic")
"""Those that do more for bytes than hand them to the kernel's TCP: around a ring on each group's links."""
SLOWER_LINKS: Final = {("three workers", "quic"): "15mbit,500us"}
"""In the place of a group's, where what a channel does for bytes takes more than the two cores that a machine may have:
there a run would be degraded, and a fit would be of workers that wait for each other's cores."""
REPEAT: Final = 7
REPEAT_SHORT: Final = 21
"""Of exchanges of up to 256 KiB."""


def measure_fit(*, on_step: Callable[[str], None] = lambda _: None) -> tuple[Fit, list[dict[str, Any]]]:
    """The fit, and each exchange with its time, predicted and measured. Raises TestbedError as a run does."""
    measured: list[Measured] = []
    rows: list[dict[str, Any]] = []
    for name, group in _groups().items():
        on_step(name)
        found = allreduce_rows(
            num_workers=group["workers"],
            link=parse_link(group["link"]),
            sizes=group["sizes"],
            stacks=group["stacks"],
            repeat=REPEAT,
            options={"repeat_short": REPEAT_SHORT},
            congestion="cubic",
        )
        for row in found:
            plan = planned(group, row["stack"], row["size_bytes"], costs=DEFAULT_COSTS)
            exchange = Exchange("all_reduce", row["size_bytes"] // 4, 4)
            measured.append(Measured(plan, exchange, row["time_s"]["median"], row["begins_s"][0]))
            rows.append({"group": name, "stack": row["stack"], "size_bytes": row["size_bytes"]})
    on_step("fitting")
    fitted_at = datetime.now(UTC).isoformat(timespec="seconds")
    fit = fit_costs(measured, fitted_at=fitted_at, num_cores=len(os.sched_getaffinity(0)))
    for row, each, residual in zip(rows, measured, fit.residuals, strict=True):
        row |= {"measured_s": each.time_s, "predicted_s": each.time_s * (1 + residual), "residual": residual}
    return fit, rows


def _groups() -> dict[str, dict[str, Any]]:
    """With their sizes, and those of the other channels, which share a group where they share its links."""
    groups = {name: {**group, "sizes": SIZES} for name, group in GROUPS.items()}
    for name, group in GROUPS.items():
        by_link: dict[str, list[str]] = {}
        for kind in filter(_is_installed, OTHER_CHANNELS):
            by_link.setdefault(SLOWER_LINKS.get((name, kind), group["link"]), []).append(kind)
        for link, kinds in by_link.items():
            stacks = [f"ring/{kind}" for kind in kinds]
            groups[f"{name}, {', '.join(kinds)}"] = {**group, "link": link, "stacks": stacks, "sizes": CHANNEL_SIZES}
    return groups


def _is_installed(kind: str) -> bool:
    try:
        CHANNELS.parse(kind).require()
    except UnsupportedError:
        return False
    return True
