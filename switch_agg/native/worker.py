"""The C worker (worker.c) as Python sees it: structures and functions, nothing else."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switch_agg.native.build import FOLDER, build
from switch_agg.native.layout import layout_of
from switch_agg.payload import INT32, Payload
from switch_agg.quantize import Blocks, Exponents, Floats, Rows
from switch_agg.slot_latency import NUM_BUCKETS
from switch_agg.wire import Elements

DONE: Final = 0
EPOCH_ENDED: Final = 1
LOST: Final = 2
CANCELLED: Final = 3
FAILED: Final = 4
POLICIES: Final = {"fixed": 0, "aimd": 1, "delay": 2}


class NativeReduction(ctypes.Structure):
    """struct reduction of worker.c."""

    _fields_ = (
        ("images", ctypes.c_void_p),
        ("elements", ctypes.c_void_p),
        ("exponents", ctypes.c_void_p),
        ("contributions", ctypes.c_void_p),
        ("saturated", ctypes.c_void_p),
        ("cancel", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("staged", ctypes.c_void_p),
        ("used", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("shift_base", ctypes.c_int32),
        ("with_floats", ctypes.c_int32),
        ("num_chunks", ctypes.c_uint32),
        ("num_elements", ctypes.c_uint32),
        ("first_chunk", ctypes.c_uint32),
        ("num_slots", ctypes.c_uint32),
        ("num_workers", ctypes.c_uint32),
        ("job", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("socket", ctypes.c_int32),
        ("policy", ctypes.c_int32),
        ("max_segments", ctypes.c_uint32),
        ("lanes", ctypes.c_int32),
        ("max_silence_s", ctypes.c_double),
        ("min_timeout_s", ctypes.c_double),
        ("target_s", ctypes.c_double),
        ("dilation", ctypes.c_double),
        ("timeout_s", ctypes.c_double),
        ("smoothed_s", ctypes.c_double),
        ("variation_s", ctypes.c_double),
        ("least_s", ctypes.c_double),
        ("patience", ctypes.c_double),
        ("grown_s", ctypes.c_double),
        ("window", ctypes.c_double),
        ("base_s", ctypes.c_double),
        ("decreased_s", ctypes.c_double),
        ("slow_start", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("new_epoch", ctypes.c_uint32),
        ("lost_chunk", ctypes.c_uint32),
        ("lost_attempts", ctypes.c_uint32),
        ("lost_after_s", ctypes.c_double),
        ("sent", ctypes.c_uint64),
        ("timeouts", ctypes.c_uint64),
        ("fast_retransmissions", ctypes.c_uint64),
        ("results", ctypes.c_uint64),
        ("duplicates", ctypes.c_uint64),
        ("bad", ctypes.c_uint64),
        ("slot_latencies", ctypes.c_uint64 * NUM_BUCKETS),
    )


def build_library() -> Path:
    """Where it is, built if need be. Raises UnsupportedError where it cannot be."""
    return build(FOLDER / "worker.c", "library", layouts=(layout_of("reduction", NativeReduction),))


@cache
def library() -> ctypes.CDLL:
    """The functions, built if need be. Raises UnsupportedError without a C compiler."""
    found = ctypes.CDLL(str(build_library()))
    pointer, u32, u64, i32 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
    found.reduce.argtypes = (ctypes.POINTER(NativeReduction),)
    found.exponents_of.argtypes = (pointer, u64, u32, pointer)
    found.stage.argtypes = (pointer, u64, u32, pointer, u64, pointer, i32, i32, pointer)
    found.unstage.argtypes = (pointer, u64, u32, pointer, u64, pointer, i32, pointer)
    found.slot_latency_bucket.argtypes, found.slot_latency_bucket.restype = (ctypes.c_double,), u32
    for name in ("exponents_of", "stage", "unstage"):
        getattr(found, name).restype = None
    return found


def address(array: npt.NDArray[Any]) -> int:
    """Where a contiguous array lies."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


class NativeCodec:
    """Implements switch_agg.quantize.Codec: one pass over the floats, one over the sums."""

    def __init__(self) -> None:
        """Raises UnsupportedError without a C compiler."""
        self._library = library()

    def exponents_of(self, values: Floats, num_values: int) -> Exponents:
        """See Codec."""
        found = np.empty(-(-len(values) // num_values), np.int8)
        self._library.exponents_of(address(values), len(values), num_values, address(found))
        return found

    def stage(
        self,
        values: Floats,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        rows: Rows,
        num_values: int,
        form: Payload = INT32,
    ) -> None:
        """See Codec."""
        blocks_ = (address(which), len(which), address(exponents))
        base = form.shift_base(num_workers)
        self._library.stage(address(values), len(values), num_values, *blocks_, base, form.lanes, address(rows))

    def unstage(
        self,
        sums: Elements,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        values: Floats,
        form: Payload = INT32,
    ) -> None:
        """See Codec."""
        blocks_ = (address(which), len(which), address(exponents))
        base = form.shift_base(num_workers) - form.rounding(num_workers)
        self._library.unstage(address(sums), len(values), sums.shape[1], *blocks_, base, address(values))
