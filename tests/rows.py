"""Rows of a record's tables, small enough to work results out on paper."""

import polars as pl

from testbed.record.frames import BUCKET_SCHEMA, ITERATION_SCHEMA, MACHINE_SCHEMA


def iteration(
    rank: int, start_s: float, phase: str = "measured", index: int = 0, **changes: object
) -> dict[str, object]:
    """data 0.25 s, forward 0.75 s, backward 2 s, exposed 3 s, optimizer 0.5 s, bookkeeping 0.25 s."""
    return {
        "rank": rank,
        "phase": phase,
        "index": index,
        "start_s": start_s,
        "data_end_s": start_s + 0.25,
        "host_to_device_end_s": changes.get("data_end_s", start_s + 0.25),
        "forward_end_s": start_s + 1,
        "backward_compute_end_s": start_s + 3,
        "backward_end_s": start_s + 6,
        "optimizer_end_s": start_s + 6.5,
        "end_s": start_s + 6.75,
        "loss": 1.0 + rank,
        "num_samples": 16,
        "cpu_s": 1.0,
        "run_queue_delay_s": 0.0,
        "communication_run_queue_delay_s": 0.1,
        "forward_stall_s": 0.0,
        "staleness": 0,
        "slowdown": 1.0,
        "pace_s": 0.0,
        "overrun_s": 0.0,
        **changes,
    }


def one_is_slow() -> list[dict[str, object]]:
    """Two iterations of two workers: the first one waits in its second forward pass for what the second one had not
    computed yet."""
    slow = {"backward_compute_end_s": 13.8, "backward_end_s": 13.8, "optimizer_end_s": 13.9, "end_s": 14.0}
    trails = {"backward_end_s": 13.0, "optimizer_end_s": 13.1, "end_s": 13.2}
    return [
        iteration(0, 10.0) | trails,
        iteration(1, 10.0) | slow,
        iteration(0, 13.25, index=1, forward_stall_s=0.5),
        iteration(1, 14.5, index=1),
    ]


def bucket(rank: int, started_s: float, done_s: float, *, index: int = 0, phase: str = "measured") -> dict[str, object]:
    times = {"enqueued_s": started_s, "started_s": started_s, "first_byte_s": started_s, "done_s": done_s}
    return {
        "rank": rank,
        "phase": phase,
        "index": index,
        "sequence": 0,
        "size_bytes": 1000,
        "payload_bytes": 10,
        "encode_s": 0.5,
        "decode_s": 0.25,
    } | times


def iterations(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=ITERATION_SCHEMA)


def buckets(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=BUCKET_SCHEMA)


def machine() -> pl.DataFrame:
    """Two cores at 100 ticks a second: from 11 s to 13 s nothing is idle, else everything; 3 of 1000 stolen."""
    rows = [
        {"at_s": float(at_s), "ticks": 200 * at_s, "idle_ticks": 200 * at_s - 200 * min(max(at_s - 11, 0), 2)}
        | {"steal_ticks": at_s // 2, "softnet_drops": at_s, "softnet_squeezes": 2 * at_s}
        for at_s in range(10, 21)
    ]
    return pl.DataFrame(rows, schema=dict(MACHINE_SCHEMA))
