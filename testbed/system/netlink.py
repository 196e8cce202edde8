"""Reads traffic control classes and interface counters over rtnetlink, ten times a second for every link.

Own code because it is the measurement itself: one socket per namespace, one dump per interface, no parsing of what
is not read. Message formats: rtnetlink(7), linux/pkt_sched.h, linux/gen_stats.h, linux/if_link.h.
"""

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
RTM_GETLINK: Final = 18
RTM_GETTCLASS: Final = 42
NLM_F_REQUEST: Final = 1
NLM_F_DUMP: Final = 0x300

IFLA_STATS64: Final = 23
TCA_KIND: Final = 1
TCA_OPTIONS: Final = 2
TCA_STATS2: Final = 7
TCA_STATS_BASIC: Final = 1
TCA_STATS_QUEUE: Final = 3
TCA_STATS_PKT64: Final = 8
TCA_HTB_PARMS: Final = 1
TCA_HTB_RATE64: Final = 6
TCA_HTB_CEIL64: Final = 7

TICK_S: Final = 64e-9
"""One tick of the packet scheduler's clock (PSCHED_SHIFT 6), in which HTB keeps its bursts."""

_NLMSG: Final = struct.Struct("=IHHII")
_TCMSG: Final = struct.Struct("=BBHiIII")
_IFINFOMSG: Final = struct.Struct("=BBHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_BASIC: Final = struct.Struct("=QI")
_QUEUE: Final = struct.Struct("=IIIII")
_RATESPEC: Final = struct.Struct("=BBHhHI")
_HTB_OPT_TAIL: Final = struct.Struct("=IIIII")


@dataclass(frozen=True, kw_only=True, slots=True)
class HtbClass:
    """One HTB class: its configuration, and what has passed it since it was made."""

    handle: int
    """Major in the upper 16 bits, minor in the lower: 0x10001 is 1:1."""
    rate_bps: float
    ceil_bps: float
    burst_bytes: float
    cburst_bytes: float
    quantum_bytes: int
    num_bytes: int
    """Headers of every segment inside a super-frame included."""
    num_packets: int
    num_drops: int
    num_overlimits: int
    backlog_bytes: int


class NetlinkError(OSError):
    """The kernel refused a request."""


class NetlinkSocket:
    """Asks one subsystem of one network namespace: the one the calling thread was in when the socket was made."""

    def __init__(self, family: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.settimeout(5.0)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, kind: int, flags: int, payload: bytes) -> Iterator[bytes]:
        """The bodies of the answers to one request. Raises NetlinkError with what the kernel refused."""
        self._sequence += 1
        header = _NLMSG.pack(_NLMSG.size + len(payload), kind, NLM_F_REQUEST | flags, self._sequence, 0)
        self._socket.send(header + payload)
        while True:
            data = self._socket.recv(1 << 18)
            offset = 0
            while offset + _NLMSG.size <= len(data):
                length, message, _, sequence, _ = _NLMSG.unpack_from(data, offset)
                body = data[offset + _NLMSG.size : offset + length]
                offset += (length + 3) & ~3
                if sequence != self._sequence:
                    continue  # the rest of an answer whose reader stopped early
                if message == NLMSG_DONE:
                    return
                if message == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code == 0:
                        return
                    raise NetlinkError(code, os.strerror(code))
                yield body
                if not flags & NLM_F_DUMP:
                    return


class LinkMonitor(NetlinkSocket):
    """Interfaces and traffic control of one network namespace."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE)

    def link_messages(self) -> Iterator[bytes]:
        """What the kernel says of every interface: struct ifinfomsg and its attributes. Raises NetlinkError."""
        return self.request(RTM_GETLINK, NLM_F_DUMP, _IFINFOMSG.pack(0, 0, 0, 0, 0, 0))

    def interfaces(self) -> dict[str, int]:
        """Every interface's index, by name. Raises NetlinkError."""
        found: dict[str, int] = {}
        for body in self.link_messages():
            _, _, _, index, _, _ = _IFINFOMSG.unpack_from(body)
            for kind, value in attributes(body, _IFINFOMSG.size):
                if kind == 3:  # IFLA_IFNAME
                    found[value.rstrip(b"\0").decode()] = index
        return found

    def link_message(self, index: int) -> bytes:
        """What the kernel says of one interface: struct ifinfomsg and its attributes. Raises NetlinkError."""
        for body in self.request(RTM_GETLINK, 0, _IFINFOMSG.pack(0, 0, 0, index, 0, 0)):
            return body
        raise NetlinkError(f"nothing is known of interface {index}")

    def transmission_drops(self, index: int) -> int:
        """Packets that the interface itself dropped instead of sending. Raises NetlinkError."""
        return _statistic(self.link_message(index), 56)

    def htb_classes(self, index: int) -> list[HtbClass]:
        """The HTB classes of an interface. Raises NetlinkError."""
        request = _TCMSG.pack(0, 0, 0, index, 0, 0, 0)
        classes: list[HtbClass] = []
        for body in self.request(RTM_GETTCLASS, NLM_F_DUMP, request):
            handle = _TCMSG.unpack_from(body)[4]
            found = dict(attributes(body, _TCMSG.size))
            if found.get(TCA_KIND, b"").rstrip(b"\0") == b"htb":
                classes.append(_parse_htb(handle, found))
        return classes


def transmitted_bytes(link_message: bytes) -> int:
    """What the interface counted as sent; misses the headers inside super-frames. Raises NetlinkError."""
    return _statistic(link_message, 24)


def _statistic(link_message: bytes, offset: int) -> int:
    """Of struct rtnl_link_stats64: {rx, tx}_packets, _bytes, _errors, _dropped, ..., 8 bytes each."""
    for kind, value in attributes(link_message, _IFINFOMSG.size):
        if kind == IFLA_STATS64:
            return int(struct.unpack_from("=Q", value, offset)[0])
    raise NetlinkError("an interface has no counters")


def attributes(body: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Kind and value of each attribute that follows the fixed part of a message."""
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _parse_htb(handle: int, found: dict[int, bytes]) -> HtbClass:
    options = dict(attributes(found[TCA_OPTIONS], 0))
    parameters = options[TCA_HTB_PARMS]
    # struct tc_htb_opt: two struct tc_ratespec, then buffer, cbuffer, quantum, level, prio
    rate_bytes = _RATESPEC.unpack_from(parameters, 0)[5]
    ceil_bytes = _RATESPEC.unpack_from(parameters, _RATESPEC.size)[5]
    if TCA_HTB_RATE64 in options:
        rate_bytes = struct.unpack("=Q", options[TCA_HTB_RATE64])[0]
    if TCA_HTB_CEIL64 in options:
        ceil_bytes = struct.unpack("=Q", options[TCA_HTB_CEIL64])[0]
    buffer, cbuffer, quantum, _, _ = _HTB_OPT_TAIL.unpack_from(parameters, 2 * _RATESPEC.size)
    statistics = dict(attributes(found[TCA_STATS2], 0))
    num_bytes, num_packets = _BASIC.unpack_from(statistics[TCA_STATS_BASIC])
    if TCA_STATS_PKT64 in statistics:
        num_packets = struct.unpack_from("=Q", statistics[TCA_STATS_PKT64])[0]
    _, backlog, drops, _, overlimits = _QUEUE.unpack_from(statistics[TCA_STATS_QUEUE])
    return HtbClass(
        handle=handle,
        rate_bps=rate_bytes * 8.0,
        ceil_bps=ceil_bytes * 8.0,
        burst_bytes=buffer * TICK_S * rate_bytes,
        cburst_bytes=cbuffer * TICK_S * ceil_bytes,
        quantum_bytes=quantum,
        num_bytes=num_bytes,
        num_packets=num_packets,
        num_drops=drops,
        num_overlimits=overlimits,
        backlog_bytes=backlog,
    )
