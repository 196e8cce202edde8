"""Whatever became ready within a cycle, up to a size (Horovod)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import ConfigDict, Field

from testbed.experiment.fusion.base import FUSIONS, EngineFusion
from transports.torch_backend.ordering import Order, Timed
from transports.units import Size, Time, format_size, format_time


@FUSIONS.register
class ByTime(EngineFusion):
    """Horovod's cycles; its defaults up to version 0.20 are `horovod_5ms`, from 0.21 on `horovod_1ms`."""

    model_config = ConfigDict(populate_by_name=True)

    in_turn: ClassVar[bool] = False
    joins_ready: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "horovod_5ms": {"bytes": "64MiB", "cycle": "5ms"},
        "horovod_1ms": {"bytes": "128MiB", "cycle": "1ms"},
    }

    bucket_bytes: Size = Field(2**26, alias="bytes", ge=1024, le=2**31)
    """The most that is joined, 1KiB to 2GiB; 64MiB where nothing is said."""
    cycle_s: Time = Field(5e-3, alias="cycle", ge=100e-6, le=10)
    """From one look at what is ready to the next; 5ms where nothing is said."""

    @property
    def limit_bytes(self) -> int:
        """See :class:`Fusion`."""
        return self.bucket_bytes

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return f"buckets of {format_time(self.cycle_s)}, {format_size(self.bucket_bytes)} at most"

    def order(self, buckets: Sequence[int]) -> Order:  # noqa: ARG002 (time decides)
        """See :class:`Fusion`."""
        return Timed(bucket_bytes=self.bucket_bytes, cycle_s=self.cycle_s)
