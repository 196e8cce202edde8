"""What a communicator saw of each operation, on the machine-wide monotonic clock.

Every process of a run shares CLOCK_MONOTONIC, so traces of different workers lie on one time line.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationTrace:
    """One finished operation of one group."""

    sequence: int
    """The number of the operation within its group."""
    operation: str
    """`all_reduce`, `broadcast`, ..."""
    size_bytes: int
    """Bytes of the buffer the operation works on (not bytes on the wire)."""
    enqueued_s: float
    """When the caller handed it over."""
    started_s: float
    """When the communication thread took it up."""
    first_byte_s: float
    """When its first message completed; equals `done_s` if nothing had to move."""
    done_s: float
    """When its last step was done."""
