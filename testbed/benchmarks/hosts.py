"""What hosts are spared in an all-reduce, each saving by itself (after Awan et al. 2019, whose design keeps what GPU
drivers say of pointers, and adds on many cores of a GPU)."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from testbed.benchmarks.targets import Benchmarks, Row, quietly, target_row
from transports.bench.savings import additions, kept_programs
from transports.units import format_size

KEPT_BYTES: Final = (4, 4096, 1 << 16)
ADDED_BYTES: Final = (1 << 16, 16 << 20)
"""A message as it is added on arrival, in the processor's cache, and one that lies in memory."""


def kept_rows() -> Iterator[Row]:
    """All-reduce between two processes over loopback, with the schedule and buffers of the one before and without."""
    for num_bytes in KEPT_BYTES:
        found, facts = quietly(partial(kept_programs, num_bytes, num_samples=300))
        details = {**facts, "kept_s": found.with_s, "anew_s": found.without_s}
        what = f"schedules and buffers kept, {format_size(num_bytes)}: times the speed without"
        target = 1.3 if num_bytes == 4096 else None
        yield target_row(what, found.ratio, target, details, at_least=True)


def vectors_rows() -> Iterator[Row]:
    """One array added to another by vectors and element by element, as compiled for this processor."""
    for num_bytes in ADDED_BYTES:
        found, facts = quietly(partial(additions, num_bytes, num_samples=200))
        details = {**facts, "vectors_s": found.with_s, "elements_s": found.without_s}
        what = f"additions of vectors, {format_size(num_bytes)}: times the speed of single elements"
        target = 3.0 if num_bytes == ADDED_BYTES[-1] else None
        yield target_row(what, found.ratio, target, details, at_least=True)


BENCHMARKS: Final[Benchmarks] = {"kept": kept_rows, "vectors": vectors_rows}
