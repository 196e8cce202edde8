"""Tensors as messages over gRPC: one bidirectional stream per pair of members, as in TensorFlow's native path.

A message is its frame header and its payload as raw bytes, without protocol buffers, cut into gRPC messages below
gRPC's limit for one. Flow control is HTTP/2's.
"""

from typing import ClassVar, Final

from pydantic import Field

from transports.channels._rpc.endpoint import StreamEndpoint
from transports.channels._rpc.grpc_streams import SHARED_THREADS, GrpcStreams
from transports.channels.base import CHANNELS, Channel, ForwardReverse
from transports.channels.framing import HEADER_BYTES
from transports.channels.tcp import Tcp
from transports.group import Group
from transports.units import Size

MAX_MESSAGE_BYTES: Final = 4 << 20
"""gRPC's limit for one message, unless both sides change it."""
FRAME_BYTES: Final = 16 << 10
"""HTTP/2's limit for the payload of one DATA frame, unless the receiver raises it (RFC 9113, 6.5.2)."""
PREFIX_BYTES: Final = 5
FRAME_HEADER_BYTES: Final = 9
FRAMING_BYTES: Final = PREFIX_BYTES + FRAME_HEADER_BYTES
"""Before each gRPC message: its length and whether it is compressed; and the header of one HTTP/2 DATA frame."""


@CHANNELS.register
class Grpc(Channel):
    """One gRPC stream per pair of members."""

    header_bytes: ClassVar[int] = HEADER_BYTES + FRAMING_BYTES
    shared_threads: ClassVar[frozenset[str]] = SHARED_THREADS

    congestion: str | None = Field(
        default=None,
        min_length=1,
        description="congestion control that routes must give; null: cubic on emulated links, else what the host takes",
    )
    chunk: Size = Field(
        default=1 << 20,
        ge=1024,
        le=MAX_MESSAGE_BYTES - HEADER_BYTES,
        description="payload of one gRPC message; longer tensors travel as several",
    )

    @property
    def congestion_control(self) -> str | None:
        """See :class:`Channel`."""
        return self.congestion

    def open(self, group: Group) -> StreamEndpoint:
        """See :class:`Channel`. Raises UnsupportedError where gRPC is not installed, or its connections get another
        congestion control than was requested."""
        return StreamEndpoint(group, GrpcStreams(group, self.chunk, congestion=self.congestion), FRAMING_BYTES)

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """That of TCP for the payload in HTTP/2's frames of at most 16 KiB and gRPC's messages of a chunk each (the
        first of each is in `header_bytes`). Left out, both below 0.1 %: window updates, and that gRPC raises the
        limit of a frame on fast links."""
        frames = payload_bytes // FRAME_BYTES * FRAME_HEADER_BYTES
        prefixes = payload_bytes // self.chunk * PREFIX_BYTES
        return Tcp().wire_bytes(payload_bytes + frames + prefixes, mtu)

    def goodput_fraction(self, mtu: int) -> float:
        """See :class:`Channel`."""
        framing = FRAME_HEADER_BYTES / FRAME_BYTES + PREFIX_BYTES / self.chunk
        return Tcp().goodput_fraction(mtu) / (1 + framing)
