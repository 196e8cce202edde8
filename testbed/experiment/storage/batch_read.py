"""Every worker reads the samples of each batch when their iteration comes, or while the one before is computed with."""

from pydantic import Field

from testbed.experiment.storage.base import STORAGES, Storage
from transports.units import Size, format_size


@STORAGES.register
class BatchRead(Storage):
    """Input over the network in every iteration."""

    sample_bytes: Size = Field(alias="sample", ge=1, le=2**34)
    """As it lies on the disk: an image of ImageNet has about 110 kB."""
    prefetch: bool = True
    """Read the next batch while this one is computed with, one batch ahead; false: an iteration begins with reading its
    own."""

    @property
    def prefetches(self) -> bool:
        """As the spec says."""
        return self.prefetch

    def batch_bytes(self, num_samples: int) -> int:
        """That many samples."""
        return num_samples * self.sample_bytes

    def text(self) -> str:
        """Who reads what."""
        when = "while the batch before is computed with" if self.prefetch else "before computing begins"
        return f"every worker reads {format_size(self.sample_bytes)} for each sample of a batch, {when}"
