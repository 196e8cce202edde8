"""What a communicator saw of each operation, on the machine-wide monotonic clock.

Every process of a run shares CLOCK_MONOTONIC, so traces of different workers lie on one time line.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple, Self


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
    encode_s: float = 0.0
    """CPU time of the codec before its last collective; 0 without one."""
    decode_s: float = 0.0
    """CPU time of the codec after it."""

    @classmethod
    def from_outside(
        cls, sequence: int, operation: str, size_bytes: int, *, enqueued_s: float, started_s: float | None = None
    ) -> Self:
        """Of a stack that says no more than that an operation has ended, just now. Where it does not say either when it
        took the operation up (gloo), it counts as busy from the moment it was requested."""
        begun_s = enqueued_s if started_s is None else started_s
        return cls(
            sequence=sequence,
            operation=operation,
            size_bytes=size_bytes,
            enqueued_s=enqueued_s,
            started_s=begun_s,
            first_byte_s=begun_s,
            done_s=time.monotonic(),
            payload_bytes=size_bytes,
        )


@dataclass(kw_only=True, slots=True)
class CodecAccount:
    """What codecs did in one job; filled in by whoever drives them."""

    payload_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0


class CodecTime(NamedTuple):
    """CPU time of a codec for one exchange, as a :class:`CodecAccount` has it."""

    encode_s: float
    decode_s: float
