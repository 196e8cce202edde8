"""What is kept between exchanges: something of each parameter, whatever bucket it is in; and memory to work in."""

from collections.abc import Hashable
from math import prod

import numpy as np

from transports.compression.base import Array, Bytes, Layout


class Memory:
    """Zeros at first. Kept by parameter: DistributedDataParallel forms its buckets anew after the first iteration."""

    def __init__(self) -> None:
        self._flats: dict[tuple[Hashable, ...], Array] = {}
        self._pieces: dict[Hashable, tuple[tuple[Hashable, ...], Array]] = {}

    def flat(self, layout: Layout) -> Array:
        """What is kept of these parameters, as one array (n,) that the caller may change and that stays."""
        keys = tuple(piece.key for piece in layout)
        if keys not in self._flats:
            self._gather(keys, layout)
        return self._flats[keys]

    def _gather(self, keys: tuple[Hashable, ...], layout: Layout) -> None:
        flat = np.zeros(sum(prod(piece.shape) for piece in layout), np.float32)
        start = 0
        outdated = set()
        for piece in layout:
            place = flat[start : start + prod(piece.shape)]
            start += len(place)
            if piece.key in self._pieces:
                earlier, kept = self._pieces[piece.key]
                outdated.add(earlier)
                place[:] = kept
            self._pieces[piece.key] = keys, place
        for earlier in outdated:
            self._flats.pop(earlier, None)
        self._flats[keys] = flat


class Scratch:
    """Memory that is used again in the next exchange: the kernel takes longer to give out fresh pages, and to clear
    them, than an eight-bit code takes to fill them."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Bytes] = {}

    def bytes(self, use: Hashable, num_bytes: int) -> Bytes:
        """(num_bytes,) of any content, until the same is requested again."""
        if use not in self._buffers or len(self._buffers[use]) < num_bytes:
            self._buffers[use] = np.empty(num_bytes, np.uint8)
        return self._buffers[use][:num_bytes]


def forget_infinite(*kept: Array) -> None:
    """Put zeros for what is not finite: one overflow would otherwise spoil everything after it."""
    for each in kept:
        if not np.isfinite(np.dot(each, each)):
            np.nan_to_num(each, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
