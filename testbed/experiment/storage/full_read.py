"""Every worker reads the whole data set before it starts: no partitioning, as with a file system that all mount."""

from pydantic import Field

from testbed.experiment.storage.base import STORAGES, Storage
from transports.units import Size, format_size


@STORAGES.register
class FullRead(Storage):
    """N workers read N times the data set."""

    data_bytes: Size = Field(alias="data", ge=1, le=2**44)
    """The size of the data set."""

    def start_bytes(self, rank: int, num_workers: int) -> int:  # noqa: ARG002 (all read all)
        """All of it."""
        return self.data_bytes

    def text(self) -> str:
        """Who reads what."""
        return f"every worker reads all {format_size(self.data_bytes)} before the first iteration"
