"""Compression by a shorter floating-point type in which the gradients are also added."""

import torch

from transports.compression.base import AllReduce, Array, Codec, Compressor, Exchanging, Layout, Place


class CastCodec(Codec):
    """Each worker's share of the mean is cast and summed: no sum of finite shares overflows that its mean does not."""

    def __init__(self, options: Compressor, place: Place, dtype: torch.dtype) -> None:
        super().__init__(options, place)
        self._dtype = dtype

    def exchange(self, values: Array, out: Array, layout: Layout) -> Exchanging:  # noqa: ARG002
        """One round."""
        share = torch.from_numpy(values).mul(1 / self.place.num_workers).to(self._dtype)
        if self.options.error_feedback:
            torch.from_numpy(values).sub_(share, alpha=self.place.num_workers)
        yield AllReduce(share, "sum")
        torch.from_numpy(out).copy_(share)
