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
    payload_bytes: int
    """What this member handed to collectives: compressed, with scales, indices and lengths."""
    encode_s: float
    """CPU time of the codec before its last collective; 0 without one."""
    decode_s: float
    """CPU time of the codec after it."""


@dataclass(kw_only=True, slots=True)
class CodecAccount:
    """What codecs did in one job; filled in by whoever drives them."""

    payload_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
