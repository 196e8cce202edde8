"""QUIC (RFC 9000) by aioquic: one connection per pair of members, each message a stream of its own.

Every byte is encrypted and every packet handled in Python, so that this channel says what QUIC's streams and its
congestion control do on a link, at tens of Mbit/s, and nothing about what a QUIC in C could carry.
"""

from typing import ClassVar, Final, Literal

from transports.channels._rpc.endpoint import StreamEndpoint
from transports.channels._rpc.quic_streams import MAX_DATAGRAM_BYTES, QuicStreams, require_aioquic
from transports.channels.base import CHANNELS, Channel, ForwardReverse
from transports.channels.framing import HEADER_BYTES
from transports.group import Group

ETHERNET_IP_UDP_BYTES: Final = 14 + 20 + 8
_OVERHEAD_BYTES: Final = 1 + 8 + 2 + 16 + 9
"""Of a 1-RTT packet (RFC 9000, 17.3.1): first byte, connection id, packet number, AEAD tag; and its STREAM frame."""
_ACKNOWLEDGEMENT_BYTES: Final = ETHERNET_IP_UDP_BYTES + 1 + 8 + 2 + 16 + 8


@CHANNELS.register
class Quic(Channel):
    """One QUIC connection per pair of members."""

    header_bytes: ClassVar[int] = HEADER_BYTES
    countable: ClassVar[bool] = False
    own_timers: ClassVar[bool] = True

    congestion: Literal["cubic", "reno"] = "cubic"
    """aioquic's own, in user space."""

    def require(self) -> None:
        """See :class:`Channel`."""
        require_aioquic()

    def open(self, group: Group) -> StreamEndpoint:
        """See :class:`Channel`. Raises UnsupportedError where aioquic is not installed."""
        return StreamEndpoint(group, QuicStreams(group, self.congestion), 0)

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:  # noqa: ARG002 (datagrams are of one size)
        """Of full packets, each second one acknowledged. An estimate: who packs what into a packet is aioquic's
        affair."""
        packets = payload_bytes / (MAX_DATAGRAM_BYTES - _OVERHEAD_BYTES)
        forward = packets * (ETHERNET_IP_UDP_BYTES + MAX_DATAGRAM_BYTES)
        return ForwardReverse(round(forward), round(packets / 2 * _ACKNOWLEDGEMENT_BYTES))

    def goodput_fraction(self, mtu: int) -> float:  # noqa: ARG002 (as above)
        """See :class:`Channel`. Datagrams are made for a path of 1500 bytes, whatever the MTU."""
        return (MAX_DATAGRAM_BYTES - _OVERHEAD_BYTES) / (ETHERNET_IP_UDP_BYTES + MAX_DATAGRAM_BYTES)
