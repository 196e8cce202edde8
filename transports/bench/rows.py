"""What follows from timed operations: rows in the manner of nccl-tests and the OSU benchmarks, and their table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from transports.bench.stacks import Composed, parse_stack
from transports.channels.framing import DTYPE_BYTES, DTYPES
from transports.channels.tcp import Tcp
from transports.collectives.base import Operation, World
from transports.collectives.cost import bound_s, bus_factor, sent_bytes
from transports.collectives.network_info import NetworkInfo
from transports.compression.base import Exchange
from transports.errors import OptionError
from transports.units import format_size

Row = dict[str, Any]
TIMED_OPERATIONS: Final[Sequence[Operation]] = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
)
ETHERNET_MTU: Final = 1500
WIDE: Final = 130
"""Characters of a terminal that shows every column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One rank's view of one operation."""

    rank: int
    stack: str
    size_bytes: int
    """Of the larger buffer."""
    number: int
    """The same on every rank."""
    begun_s: float
    """By the monotonic clock of the rank's machine."""
    duration_s: float
    cpu_s: float
    """Of the whole process while the operation was under way."""
    error: float
    """Of the result, relative, in the L2 norm."""


def element_bytes(dtype: str) -> int:
    """Of a type in `transports.channels.framing.DTYPES`."""
    return DTYPE_BYTES[DTYPES.index(dtype)]


def matrix_shape(num_elements: int) -> tuple[int, int]:
    """The rows and columns that an all-reduced buffer is said to have, as square as can be: compressors of low rank
    work on matrices."""
    rows = next((each for each in range(math.isqrt(num_elements), 0, -1) if num_elements % each == 0), 1)
    return rows, num_elements // rows


def wire_bytes_per_rank(
    stack: str,
    operation: Operation,
    *,
    num_workers: int,
    num_elements: int,
    dtype: str,
    mtu: int = ETHERNET_MTU,
    network_info: NetworkInfo | None = None,
    racks: Sequence[int] = (),
) -> int | None:
    """What the rank that sends most puts on an Ethernet of that MTU for one operation, from the schedule: headers
    included, acknowledgements not. `network_info` is what the ranks' collectives knew of it, and `racks` each rank's
    (empty: all in one). None for a baseline library, and where a compressor's bytes depend on the values."""
    parsed = parse_stack(stack)
    if not isinstance(parsed, Composed) or parsed.compression.data_dependent:
        return None
    collective = parsed.collective if network_info is None else parsed.collective.with_network_info(network_info)
    world = collective.world(num_workers, racks=tuple(racks))
    sent = [0] * world.size
    for exchange in _requested(parsed, operation, num_workers=num_workers, num_elements=num_elements, dtype=dtype):
        link_bytes = exchange.link_bytes(collective)
        if link_bytes is not None:
            sent = [each + link_bytes for each in sent]
            continue
        counts = sent_bytes(collective, exchange.operation, world, exchange.num_elements, exchange.element_bytes)
        for (sender, _), count in counts.items():
            payload_bytes = count.payload_bytes + count.num_messages * parsed.channel.header_bytes
            sent[sender] += parsed.channel.wire_bytes(payload_bytes, mtu).forward
    return max(sent[:num_workers])


def _requested(
    stack: Composed, operation: Operation, *, num_workers: int, num_elements: int, dtype: str
) -> Sequence[Exchange]:
    """What one operation asks of the collective."""
    if not stack.compression.compresses:
        return [Exchange(operation, num_elements, element_bytes(dtype), sums_floats="float" in dtype)]
    requested = stack.compression.exchanges([matrix_shape(num_elements)], num_workers)
    if stack.compression.own_type:
        return [exchange._replace(element_bytes=element_bytes(dtype)) for exchange in requested]
    return requested


def task_bound_s(operation: Operation, *, num_workers: int, size_bytes: int, rate_bps: float, mtu: int) -> float:
    """The least time of an operation on links of that rate, one per rank, without help from switches or servers: the
    same for every stack."""
    goodput_bps = rate_bps * Tcp().goodput_fraction(mtu)
    return bound_s(operation, world=World(num_workers=num_workers), size_bytes=size_bytes, goodput_bps=goodput_bps)


def schedule_bound_s(
    stack: str,
    operation: Operation,
    *,
    num_workers: int,
    num_elements: int,
    dtype: str,
    rate_bps: float,
    mtu: int,
    racks: Sequence[int] = (),
) -> float:
    """The least time of a stack's way to do it: where a switch aggregates, of the frames that each link must carry once
    up and once down; with servers, of the bytes that their links must carry; else the task's."""
    parsed = parse_stack(stack)
    size_bytes, world = num_elements * element_bytes(dtype), World(num_workers=num_workers)
    if isinstance(parsed, Composed):
        world = parsed.collective.world(num_workers, racks=tuple(racks))
        requested = _requested(parsed, operation, num_workers=num_workers, num_elements=num_elements, dtype=dtype)
        counted = [count for each in requested if (count := each.link_bytes(parsed.collective)) is not None]
        if len(counted) == len(requested):
            return sum(counted) * 8 / rate_bps
    goodput_bps = rate_bps * Tcp().goodput_fraction(mtu)
    return bound_s(operation, world=world, size_bytes=size_bytes, goodput_bps=goodput_bps)


def summarise(
    samples: Sequence[Sample],
    *,
    operation: Operation,
    dtype: str,
    num_workers: int,
    rate_bps: float | None,
    mtu: int = ETHERNET_MTU,
    network_info: NetworkInfo | None = None,
    racks: Sequence[int] = (),
    one_clock: bool = False,
) -> list[Row]:
    """One row for each stack and size, in the order of the samples. The time of an operation is that of its slowest
    rank, its CPU time that of all ranks together; GB moved are what bus bandwidth counts, times the ranks. With
    the rate of every rank's link, each stack has the task's bound and its own. `network_info` is what the ranks'
    collectives knew of the links, and `racks` each rank's (empty: all in one).

    With `one_clock` all ranks ran on one machine, and `begins_s` is when each began, after the first one that did, in
    each of the third of operations that took nearest to the median: who leaves a barrier before others waits for them
    in its own time. The first of them is typical: its ranks began as far apart as the median of that third's."""
    rows: list[Row] = []
    for stack, size_bytes in dict.fromkeys((sample.stack, sample.size_bytes) for sample in samples):
        chosen = [sample for sample in samples if (sample.stack, sample.size_bytes) == (stack, size_bytes)]
        each = [[s for s in chosen if s.number == number] for number in sorted({s.number for s in chosen})]
        times_s = np.array([max(s.duration_s for s in ranks) for ranks in each])
        p10_s, median_s, p90_s = (float(value) for value in np.percentile(times_s, [10, 50, 90]))
        cpu_s = float(np.median([sum(s.cpu_s for s in ranks) for ranks in each]))
        factor = bus_factor(operation, num_workers)
        moved_bytes = num_workers * factor * size_bytes
        num_elements = size_bytes // element_bytes(dtype)
        row: Row = {
            "operation": operation,
            "stack": stack,
            "num_workers": num_workers,
            "size_bytes": size_bytes,
            "num_elements": num_elements,
            "dtype": dtype,
            "num_samples": len(each),
            "time_s": {"median": median_s, "p10": p10_s, "p90": p90_s},
            "rank_time_s": _of_ranks(chosen),
            **({"begins_s": _begins_s([each[index] for index in np.argsort(times_s)])} if one_clock else {}),
            "algbw_bps": size_bytes * 8 / median_s,
            "busbw_bps": size_bytes * 8 / median_s * factor,
            "wire_bytes_per_rank": wire_bytes_per_rank(
                stack,
                operation,
                num_workers=num_workers,
                num_elements=num_elements,
                dtype=dtype,
                mtu=mtu,
                network_info=network_info,
                racks=racks,
            ),
            "cpu_s": cpu_s,
            "cpu_s_per_gb": cpu_s / moved_bytes * 1e9 if moved_bytes else None,
            "relative_error": max(s.error for s in chosen),
        }
        if rate_bps is not None:
            task_s = task_bound_s(operation, num_workers=num_workers, size_bytes=size_bytes, rate_bps=rate_bps, mtu=mtu)
            schedule_s = schedule_bound_s(
                stack,
                operation,
                num_workers=num_workers,
                num_elements=num_elements,
                dtype=dtype,
                rate_bps=rate_bps,
                mtu=mtu,
                racks=racks,
            )
            row |= {
                "bound_s": task_s,
                "ratio_to_bound": median_s / task_s if task_s else None,
                "schedule_bound_s": schedule_s,
                "ratio_to_schedule_bound": median_s / schedule_s if schedule_s else None,
            }
        rows.append(row)
    return rows


def _begins_s(operations: Sequence[Sequence[Sample]]) -> list[list[float]]:
    """When each rank began, after the first rank that did, in the third of these operations that is in their middle,
    the typical one first; they are in the order of their times."""
    num_near = max(1, len(operations) // 3)
    start = (len(operations) - num_near) // 2
    near = []
    for ranks in operations[start : start + num_near]:
        begun_s = [sample.begun_s for sample in sorted(ranks, key=lambda sample: sample.rank)]
        near.append([each_s - min(begun_s) for each_s in begun_s])
    near.sort(key=max)
    return [near.pop((num_near - 1) // 2), *near]


def _of_ranks(samples: Sequence[Sample]) -> dict[str, float]:
    """The mean, the least and the greatest of the ranks' own means."""
    ranks = sorted({sample.rank for sample in samples})
    each = [float(np.mean([sample.duration_s for sample in samples if sample.rank == rank])) for rank in ranks]
    return {"mean": float(np.mean(each)), "min": min(each), "max": max(each)}


def parse_format(name: str) -> Callable[[Sequence[Row], Console], None]:
    """What prints rows so. Raises OptionError."""
    if name not in _FORMATS:
        raise OptionError(f"--format {name}: allowed: {', '.join(_FORMATS)}")
    return _FORMATS[name]


def render_osu(rows: Sequence[Row], console: Console) -> None:
    """A list for each stack as OSU's collective benchmarks print one with `-f`, for programs that read those: of each
    rank's mean over the samples the mean, the least and the greatest, in microseconds."""
    for stack in dict.fromkeys(row["stack"] for row in rows):
        own = sorted((row for row in rows if row["stack"] == stack), key=lambda row: row["size_bytes"])
        lines = [f"# {own[0]['operation']} of {own[0]['dtype']}, {stack}, {own[0]['num_workers']} ranks"]
        columns = ("Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations")
        lines.append(f"{'# Size':<10}" + "".join(f"{column:>18}" for column in columns))
        for row in own:
            times_us = [1e6 * row["rank_time_s"][key] for key in ("mean", "min", "max")]
            cells = "".join(f"{time_us:>18.2f}" for time_us in times_us)
            lines.append(f"{row['size_bytes']:<10}{cells}{row['num_samples']:>18}")
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def render(rows: Sequence[Row], console: Console) -> None:
    """The table, sizes in ascending order. `of bound` is the task's bound over the median time,
    `of own` the stack's own.

    A narrow terminal is spared the columns that JSON has as well.
    """
    wide = console.width >= WIDE
    bounded = any("bound_s" in row for row in rows)
    table = Table(
        title=f"{rows[0]['operation']}, {rows[0]['num_workers']} ranks; times in ms, bandwidths in Mbit/s",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    columns = ["size", *["count", "dtype"] * wide, "stack", "time", *["p10", "p90"] * wide, "algbw", "busbw"]
    columns += (
        ["of bound"] * bounded
        + ["of own"] * (bounded and wide)
        + ["wire/rank"] * wide
        + ["CPU s/GB"]
        + ["error"] * wide
    )
    for column in columns:
        if column == "stack":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="left" if column == "dtype" else "right", no_wrap=True)
    for row in sorted(rows, key=lambda row: row["size_bytes"]):
        cells = [format_size(row["size_bytes"]), *[str(row["num_elements"]), row["dtype"]] * wide, row["stack"]]
        times_ms = [f"{row['time_s'][key] * 1e3:.3f}" for key in ("median", "p10", "p90")]
        cells += times_ms if wide else times_ms[:1]
        cells += [f"{row[key] / 1e6:.1f}" for key in ("algbw_bps", "busbw_bps")]
        if bounded:
            ratios = [row["ratio_to_bound"], *[row["ratio_to_schedule_bound"]] * wide]
            cells += [f"{100 / ratio:.1f}%" if ratio else "-" for ratio in ratios]
        wire_bytes, cpu_s_per_gb = row["wire_bytes_per_rank"], row["cpu_s_per_gb"]
        cells += ["-" if wire_bytes is None else str(wire_bytes)] * wide
        cells.append("-" if cpu_s_per_gb is None else f"{cpu_s_per_gb:.2f}")
        table.add_row(*cells, *[f"{row['relative_error']:.0e}"] * wide)
    console.print(table)


_FORMATS: Final[dict[str, Callable[[Sequence[Row], Console], None]]] = {"table": render, "osu": render_osu}
