"""Neighbours until a bucket has its size: torch's DistributedDataParallel as it comes."""

from pydantic import ConfigDict, Field

from testbed.experiment.fusion.base import FUSIONS, Fusion
from transports.units import Size, format_size


@FUSIONS.register
class BySize(Fusion):
    """A bucket is closed when its gradients have reached `bytes`."""

    model_config = ConfigDict(populate_by_name=True)

    bucket_bytes: Size = Field(2**20, alias="bytes", ge=1024, le=2**31)
    """1KiB to 2GiB; 1MiB where nothing is said."""

    @property
    def limit_bytes(self) -> int:
        """See :class:`Fusion`."""
        return self.bucket_bytes

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return f"buckets of {format_size(self.bucket_bytes)}"
