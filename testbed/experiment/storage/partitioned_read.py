"""Every worker reads its own part of the data set before it starts."""

from pydantic import Field

from testbed.experiment.storage.base import STORAGES, Storage
from transports.units import Size, format_size


@STORAGES.register
class PartitionedRead(Storage):
    """All workers together read the data set once."""

    data_bytes: Size = Field(alias="data", ge=1, le=2**44)
    """The size of the data set."""

    def start_bytes(self, rank: int, num_workers: int) -> int:
        """An equal part; the first ones are a byte longer where it does not divide."""
        return self.data_bytes // num_workers + (rank < self.data_bytes % num_workers)

    def text(self) -> str:
        """Who reads what."""
        return f"every worker reads its part of {format_size(self.data_bytes)} before the first iteration"
