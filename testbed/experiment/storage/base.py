"""Where training data come from: a storage node `d0` on the emulated network, which every worker reads from. Pure.

Its link is planned, shaped, calibrated and counted as every other. What it sends is real bytes over TCP, one connection
for each worker, and its disk is a queue of one server: blocks are read one after the other, in the order of the
requests, whoever sent them. Nothing is cached: what two workers read is read twice.
"""

from abc import abstractmethod
from typing import ClassVar, Final

from pydantic import ConfigDict, Field

from transports.registry import Options, Registry
from transports.units import Rate, format_rate

STORAGE_NODE: Final = "d0"
STORAGE_ENTRY: Final = "testbed.worker.storage_node:main"
"""What serves there."""
STORAGE_PORT: Final = 5150
"""Below the ports that the kernel gives to connections, and below those of background traffic."""
REQUEST_BYTES: Final = 8
"""Of a request: how many bytes are wanted."""
MIN_DISK_BPS: Final = 1e6
MAX_DISK_BPS: Final = 1e13


class Storage(Options):
    """A value on the storage axis."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""

    disk_bps: Rate | None = Field(None, alias="disk", ge=MIN_DISK_BPS, le=MAX_DISK_BPS)
    """What the node reads from its disk, for all workers together; null: more than any link takes."""
    at: str | None = None
    """The switch that the node is attached to, by a link like a worker's; null: that of the first worker's host."""

    @property
    def prefetches(self) -> bool:
        """Whether the next iteration's batch is read while this one is computed with."""
        return False

    def start_bytes(self, rank: int, num_workers: int) -> int:  # noqa: ARG002 (those that read then depend on both)
        """What this worker reads before the first iteration."""
        return 0

    def batch_bytes(self, num_samples: int) -> int:  # noqa: ARG002 (those that read then depend on it)
        """What a worker reads for an iteration with so many samples."""
        return 0

    @property
    def reads_batches(self) -> bool:
        """Whether anything is read for each iteration."""
        return self.batch_bytes(1) > 0

    @abstractmethod
    def text(self) -> str:
        """Who reads what and when, for a reader of the plan: `every worker reads all 1GiB before the first
        iteration`."""

    @property
    def disk_text(self) -> str:
        """`a disk of 1gbit`; empty where the disk is never what is waited for."""
        return "" if self.disk_bps is None else f"a disk of {format_rate(self.disk_bps)}"


STORAGES: Final[Registry[Storage]] = Registry("storage", "testbed.experiment.storage")
