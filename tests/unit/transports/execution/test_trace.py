import time

from transports.execution.trace import OperationTrace


def test_what_is_seen_from_outside_is_busy_from_the_moment_it_was_requested() -> None:
    enqueued_s = time.monotonic()
    trace = OperationTrace.from_outside(3, "all_reduce", 40, enqueued_s=enqueued_s)
    assert (trace.started_s, trace.first_byte_s, trace.payload_bytes) == (enqueued_s, enqueued_s, 40)
    assert trace.done_s >= enqueued_s
    later = OperationTrace.from_outside(3, "all_reduce", 40, enqueued_s=enqueued_s, started_s=enqueued_s + 1)
    assert (later.started_s, later.first_byte_s) == (enqueued_s + 1, enqueued_s + 1)
