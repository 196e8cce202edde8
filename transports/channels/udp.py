"""A reliable channel of our own over UDP: selective acknowledgement, pacing, window policies to choose from.

With a fixed rate, or a probed one (`rate: null`, `window: fixed`), random loss costs what it loses and no more. With
`aimd` or `delay` the window decides, and the channel makes room for others.
"""

import errno
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from switch_agg import clock
from switch_agg.driver import open_socket
from switch_agg.window import AimdWindow, FixedWindow, Window
from transports.channels._udp.connection import PROBED_PACE, WINDOW_PACE, Connection, Pace
from transports.channels._udp.endpoint import UdpEndpoint
from transports.channels._udp.native import Completions, Pacer, build_library, library
from transports.channels._udp.window import CompetingDelayWindow
from transports.channels._udp.wire import (
    ACKNOWLEDGEMENT_BYTES,
    IP_UDP_BYTES,
    MAX_LENGTH,
    OVERHEAD_BYTES,
    RANGE_BYTES,
)
from transports.channels._udp.wire import HEADER_BYTES as DATAGRAM_HEADER_BYTES
from transports.channels.base import CHANNELS, Channel, ForwardReverse
from transports.channels.framing import HEADER_BYTES
from transports.channels.ports import port_range, ports
from transports.errors import OptionError, PeerLostError, TransportError
from transports.group import Group, published
from transports.units import Rate, Time

_INITIAL_PACKETS: Final = 16
_SO_TIMESTAMPNS: Final = 35
_IP_MTU_DISCOVER: Final = 10
_IP_PMTUDISC_DO: Final = 2


@CHANNELS.register
class Udp(Channel):
    """One UDP socket per pair of members, paced and acknowledged by ourselves."""

    header_bytes: ClassVar[int] = HEADER_BYTES
    counts_itself: ClassVar[bool] = True
    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = (build_library,)

    rate: Rate | None = Field(
        default=None, gt=0, description="wire rate of all that a member sends; null: each connection discovers its own"
    )
    window: Literal["fixed", "aimd", "delay"] = Field(
        default="fixed",
        description="fixed: rate and packets decide; aimd: halves on loss and ECN marks; delay: as Swift, and as "
        "aimd while others fill the queue",
    )
    packets: int = Field(default=8192, ge=1, le=2**20, description="the window's maximum")
    target: Time = Field(default=1e-3, gt=0, description="of `delay`: queueing delay to aim for")
    payload: int = Field(
        default=1448, ge=64, le=MAX_LENGTH, description="bytes a full packet carries; headers of 52 B come before them"
    )

    @model_validator(mode="after")
    def _target_is_read(self) -> Self:
        """By value: plain data that a spec comes back from names every option."""
        if self.window != "delay" and self.target != type(self).model_fields["target"].default:
            raise ValueError("target: only `delay` aims for one; say window: delay")
        return self

    def open(self, group: Group) -> UdpEndpoint:
        """See :class:`Channel`. Raises UnsupportedError without a C compiler."""
        library()
        deadline_s = time.monotonic() + group.timeout_s
        peers = [rank for rank in range(group.size) if rank != group.rank]
        numbers = {peer: secrets.randbits(32) for peer in peers}
        sockets: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            for peer in peers:
                sockets[peer] = undo.enter_context(_bound(group, peer))
                host, port = sockets[peer].getsockname()
                group.store.set(f"{group.name}/{group.rank}/{peer}", f"{host}:{port}:{numbers[peer]}")
            connections = {}
            pacer, completions = Pacer(), Completions()
            for peer in peers:
                key = f"{group.name}/{peer}/{group.rank}"
                host, port, number = published(group, key, peer, "its address in the store", deadline_s).split(":")
                try:
                    sockets[peer].connect((host, int(port)))
                except OSError as error:
                    raise PeerLostError(peer, f"{host}:{port}: {error.strerror}") from error
                connections[peer] = Connection(
                    peer=(host, int(port)),
                    local=numbers[peer],
                    remote=int(number),
                    packet_bytes=self.payload,
                    window=self._window(),
                    pace=self._pace(),
                    pacer=Pacer() if self.rate is None else pacer,
                    completions=completions,
                    now_s=clock.now_s(),
                )
            endpoint = UdpEndpoint(group, sockets, connections, completions)
            undo.pop_all()
        return endpoint

    def _window(self) -> Window:
        if self.window == "fixed":
            return FixedWindow(self.packets)
        if self.window == "aimd":
            return AimdWindow(_INITIAL_PACKETS, self.packets)
        return CompetingDelayWindow(_INITIAL_PACKETS, self.packets, target_s=self.target)

    def _pace(self) -> Pace:
        if self.rate is not None:
            return Pace.fixed(self.rate)
        return PROBED_PACE if self.window == "fixed" else WINDOW_PACE

    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """Forward: full packets and a last one, exact for one message. Reverse: an estimate, one acknowledgement with
        one range for every 16 packets; receive offloads make it fewer."""
        packets = -(-payload_bytes // self._packet_bytes(mtu))
        acknowledgement_bytes = OVERHEAD_BYTES + ACKNOWLEDGEMENT_BYTES + RANGE_BYTES
        return ForwardReverse(payload_bytes + packets * OVERHEAD_BYTES, -(-packets // 16) * acknowledgement_bytes)

    def goodput_fraction(self, mtu: int) -> float:
        """See :class:`Channel`."""
        packet_bytes = self._packet_bytes(mtu)
        return packet_bytes / (packet_bytes + OVERHEAD_BYTES)

    def _packet_bytes(self, mtu: int) -> int:
        """What a packet carries at this MTU. Raises OptionError when it does not fit."""
        most = mtu - IP_UDP_BYTES - DATAGRAM_HEADER_BYTES
        if self.payload > most:
            raise OptionError(f"channel.payload: {self.payload} B do not fit an MTU of {mtu}; at most {most}")
        return self.payload


def _bound(group: Group, peer: int) -> socket.socket:
    """A socket on the group's own address, with a port that follows from names and ranks (see _tcp_mesh)."""
    for port in ports(group.name, group.rank, peer, port_range()):
        try:
            opened = open_socket((group.address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port != 0:
                continue
            raise TransportError(f"rank {group.rank} cannot use {group.address}: {error}") from error
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        return opened
    raise AssertionError("the last port to try is any")
