"""Compression by a shorter floating-point type in which the gradients are also added."""

import torch

from transports.compression.base import AllReduce, Array, Codec, Compressor, Exchanging, Layout, Place, limited


class CastCodec(Codec):
    """Each worker's share is cast and summed: no sum of finite shares overflows that the result does not.

    With error feedback gradients are limited so that no sum overflows at all, and what is cut off is sent later.
    """

    def __init__(self, options: Compressor, place: Place, dtype: torch.dtype) -> None:
        super().__init__(options, place)
        self._dtype = dtype
        precision = torch.finfo(dtype)
        self._largest = precision.max / (1 + precision.eps / 2) ** place.num_workers  # each addition may round up

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        """One round."""
        fed_back = self.options.error_feedback
        given = limited(values, self._largest) if fed_back else values
        share = torch.from_numpy(given).mul(weight).to(self._dtype)
        if fed_back:
            torch.from_numpy(values).sub_(share, alpha=1 / weight)
        yield AllReduce(share, "sum")
        torch.from_numpy(out).copy_(share)
