"""Control over gRPC, tensors over a TCP side channel: what Awan et al. (CCGRID 2019) call gRPC+X."""

from typing import ClassVar, Literal

from pydantic import Field

from transports.channels._rpc.bulk_endpoint import BulkEndpoint
from transports.channels._rpc.grpc_streams import SHARED_THREADS
from transports.channels.base import CHANNELS, Endpoint
from transports.channels.tcp import Tcp
from transports.group import Group


@CHANNELS.register
class GrpcBulk(Tcp):
    """Headers over one gRPC stream per pair of members, payloads over TCP."""

    countable: ClassVar[bool] = False
    shared_threads: ClassVar[frozenset[str]] = SHARED_THREADS

    zero_copy: Literal[False] = Field(default=False, description="payloads leave message by message, each with a copy")

    def open(self, group: Group) -> Endpoint:
        """See :class:`Channel`. Raises UnsupportedError where gRPC is not installed."""
        return BulkEndpoint(group, self.connect(group))
