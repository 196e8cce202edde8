"""What sparsifiers share: a payload of indices (uint32) and values (float32), and the search for the largest."""

from typing import Final

import numpy as np
import numpy.typing as npt

from transports.compression.base import Array, Bytes, GatheredCodec, Layout

ENTRY_BYTES: Final = 8
Indices = npt.NDArray[np.int64]


def pack(indices: Indices, values: Array) -> Bytes:
    """The payload of these elements of the values."""
    payload = np.empty(ENTRY_BYTES * len(indices), np.uint8)
    border = 4 * len(indices)
    payload[:border].view(np.uint32)[:] = indices
    np.take(values, indices, out=payload[border:].view(np.float32))
    return payload


def unpack(payload: Bytes) -> tuple[npt.NDArray[np.uint32], Array]:
    """Indices and values."""
    border = len(payload) // 2
    return payload[:border].view(np.uint32), payload[border:].view(np.float32)


def largest(values: Array, num_kept: int) -> Indices:
    """Indices, in order, of the elements largest in absolute value; one that is not a number counts as largest."""
    if num_kept >= len(values):
        return np.arange(len(values))
    sizes = np.abs(values)
    least = np.partition(sizes, len(values) - num_kept)[len(values) - num_kept]
    if np.isnan(least):  # more of them than are kept
        return np.flatnonzero(np.isnan(sizes))[:num_kept]
    above = np.flatnonzero(~(sizes <= least))
    if len(above) == num_kept:
        return above
    equal = np.flatnonzero(sizes == least)[: num_kept - len(above)]
    return np.sort(np.concatenate([above, equal]))


class SparseCodec(GatheredCodec):
    """Decodes such payloads."""

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        """Add the elements that were sent."""
        indices, values = unpack(payload)
        total[indices] += values * np.float32(weight)
