"""Hears of every change to a node's interfaces, queues, addresses, routes, neighbours and packet filters.

Reading settings back after a run finds what is still wrong then. What was changed while the workers worked and put
back before the end falsifies just as much, so the kernel's notifications are read: rtnetlink(7) sends a message to its
multicast groups for each change, nf_tables does the same. The messages wait in the socket until they are read, in the
order of the changes. Of sysctls the kernel says only what concerns forwarding; those of TCP that hold for connections
that are open already are read again and again (kernel documentation, networking/ip-sysctl).
"""

import errno
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from testbed.system.kernel import read_sysctl
from testbed.system.netlink import NLMSG_DONE, NLMSG_ERROR, attributes

_NLMSG: Final = struct.Struct("=IHHII")
_IFINFOMSG: Final = struct.Struct("=BBHiII")
_TCMSG: Final = struct.Struct("=BBHiIII")
_INDEXED: Final = struct.Struct("=BBBBi")
"""The beginning of struct ifaddrmsg and of struct ndmsg: four bytes, then the interface's index."""

_RTNLGRP_LINK: Final = 1
_RTNLGRP_NEIGH: Final = 3
_RTNLGRP_TC: Final = 4
_RTNLGRP_IPV4_IFADDR: Final = 5
_RTNLGRP_IPV4_ROUTE: Final = 7
_RTNLGRP_IPV4_RULE: Final = 8
_RTNLGRP_IPV4_NETCONF: Final = 24
_ROUTE_GROUPS: Final = (
    _RTNLGRP_LINK,
    _RTNLGRP_NEIGH,
    _RTNLGRP_TC,
    _RTNLGRP_IPV4_IFADDR,
    _RTNLGRP_IPV4_ROUTE,
    _RTNLGRP_IPV4_RULE,
    _RTNLGRP_IPV4_NETCONF,
)
_NFNLGRP_NFTABLES: Final = 7
_NETLINK_NETFILTER: Final = 12
_NFNL_SUBSYS_NFTABLES: Final = 10
_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_RECEIVE_BUFFER_BYTES: Final = 1 << 20

_RTM_NEWLINK: Final = 16
_RTM_DELLINK: Final = 17
_ADDRESSES: Final = (20, 21)
_ROUTES: Final = (24, 25)
_NEIGHBOURS: Final = (28, 29)
_RULES: Final = (32, 33)
_QDISCS: Final = (36, 37)
_CLASSES: Final = (40, 41)
_FILTERS: Final = (44, 45)
_NETCONF: Final = 80
_KINDS: Final[Mapping[int, str]] = {
    _RTM_NEWLINK: "interface set",
    _RTM_DELLINK: "interface removed",
    _ADDRESSES[0]: "address set",
    _ADDRESSES[1]: "address removed",
    _ROUTES[0]: "route set",
    _ROUTES[1]: "route removed",
    _NEIGHBOURS[0]: "neighbour set",
    _NEIGHBOURS[1]: "neighbour removed",
    _RULES[0]: "routing rule set",
    _RULES[1]: "routing rule removed",
    _QDISCS[0]: "queueing discipline set",
    _QDISCS[1]: "queueing discipline removed",
    _CLASSES[0]: "traffic class set",
    _CLASSES[1]: "traffic class removed",
    _FILTERS[0]: "traffic filter set",
    _FILTERS[1]: "traffic filter removed",
    _NETCONF: "forwarding of packets (sysctl net.ipv4.ip_forward or net.ipv4.conf) set",
}
_FILTERING: Final[Mapping[int, str]] = {
    0: "table of packet filters set",
    2: "table of packet filters removed",
    3: "chain of packet filters set",
    5: "chain of packet filters removed",
    6: "packet filter set",
    8: "packet filter removed",
    9: "set of packet filters set",
    11: "set of packet filters removed",
    12: "element of a packet filter's set set",
    14: "element of a packet filter's set removed",
}
"""enum nf_tables_msg_types; what follows from one of these, such as a new generation, is left out."""
_IFF_UP: Final = 0x1
_IFF_NOARP: Final = 0x80
_IFF_LOWER_UP: Final = 0x10000
_IFLA_ADDRESS: Final = 1
_IFLA_NAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_QDISC: Final = 6
_IFLA_MASTER: Final = 10
_IFLA_TXQLEN: Final = 13
_IFLA_CARRIER: Final = 33
_IFLA_GSO_MAX_SEGS: Final = 40
_IFLA_GSO_MAX_SIZE: Final = 41
_IFLA_XDP: Final = 43
_IFLA_EVENT: Final = 44
_IFLA_EVENT_FEATURES: Final = 2
_IFLA_GRO_MAX_SIZE: Final = 58
_IFLA_GSO_IPV4_MAX_SIZE: Final = 63
_IFLA_GRO_IPV4_MAX_SIZE: Final = 64
_REPORTED_ATTRIBUTES: Final = frozenset(
    {
        _IFLA_ADDRESS,
        _IFLA_MTU,
        _IFLA_QDISC,
        _IFLA_MASTER,
        _IFLA_TXQLEN,
        _IFLA_CARRIER,
        _IFLA_GSO_MAX_SEGS,
        _IFLA_GSO_MAX_SIZE,
        _IFLA_XDP,
        _IFLA_GRO_MAX_SIZE,
        _IFLA_GSO_IPV4_MAX_SIZE,
        _IFLA_GRO_IPV4_MAX_SIZE,
    }
)
"""Of an interface's messages, what falsifies when it changes; they come for other reasons, too, such as a capture."""


WATCHED_SYSCTLS: Final = tuple(
    f"net.ipv4.{name}"
    for name in (
        "ip_forward",
        "tcp_autocorking",
        "tcp_early_retrans",
        "tcp_limit_output_bytes",
        "tcp_min_rtt_wlen",
        "tcp_min_tso_segs",
        "tcp_moderate_rcvbuf",
        "tcp_pacing_ca_ratio",
        "tcp_pacing_ss_ratio",
        "tcp_recovery",
        "tcp_rmem",
        "tcp_slow_start_after_idle",
        "tcp_tso_rtt_log",
        "tcp_tso_win_divisor",
        "tcp_wmem",
    )
)
"""Each namespace has its own, and they hold at once, for connections that are open, too."""


class SettingChange(NamedTuple):
    """Something that a process other than the run's own has changed."""

    at_s: float
    """time.monotonic() when it was noticed, after it was made."""
    node: str
    what: str
    """`traffic class set on w0-eth0`."""
    port_id: int
    """Of the netlink socket that requested it: as a rule the process' id; 0: the kernel itself."""

    @property
    def text(self) -> str:
        """Who changed what, as a reason of a verdict."""
        by = f" by process {self.port_id}{_command_of(self.port_id)}" if self.port_id else ""
        return f"{self.node}: {self.what}{by}"


class _Interface(NamedTuple):
    """What is known of one that makes a difference."""

    flags: int
    attributes: tuple[tuple[int, bytes], ...]


class SettingsMonitor:
    """Of one network namespace: the one the calling thread is in. One thread at a time."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sockets = [_joined(socket.NETLINK_ROUTE, _ROUTE_GROUPS)]
        with suppress(OSError):  # a kernel without nf_tables has no rules of it either
            self._sockets.append(_joined(_NETLINK_NETFILTER, (_NFNLGRP_NFTABLES,)))
        self._names: dict[int, str] = {}
        self._known: dict[int, _Interface] = {}
        self._sysctls: dict[str, str] = {}

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, links: Iterable[bytes], sysctls: Mapping[str, str] = MappingProxyType({})) -> None:
        """From now on changes count. `links` are RTM_GETLINK's answers: how every interface is; `sysctls` what
        :func:`read_sysctls` says."""
        self._sysctls = dict(sysctls)
        for _ in self._messages():
            pass
        for body in links:
            self._note(body)

    def changes(self) -> Iterator[SettingChange]:
        """What has changed since the last call."""
        for family, kind, port_id, body in self._messages():
            what = self._packet_filter(kind) if family == _NETLINK_NETFILTER else self._setting(kind, body)
            if what is not None:
                yield SettingChange(time.monotonic(), self._node, what, port_id)

    def compared(self, link_message: bytes) -> Iterator[SettingChange]:
        """What an interface, as RTM_GETLINK answers, has become without a message: the kernel sends none for the size
        of super-frames."""
        if self._note(link_message):
            yield SettingChange(time.monotonic(), self._node, self._setting_of(_RTM_NEWLINK, link_message), 0)

    def compared_sysctls(self, sysctls: Mapping[str, str]) -> Iterator[SettingChange]:
        """Those that differ from before."""
        for key, value in sysctls.items():
            before, self._sysctls[key] = self._sysctls.get(key), value
            if before is not None and before != value:
                text = f"sysctl {key} changed from {before} to {value}"
                yield SettingChange(time.monotonic(), self._node, text, 0)

    def forget(self) -> None:
        """Ignore what has changed since the last call: it was the run's own doing."""
        for _ in self.changes():
            pass

    def _messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Family, kind, port of the asker and body of each message that waits."""
        for number, each in enumerate(self._sockets):
            family = socket.NETLINK_ROUTE if number == 0 else _NETLINK_NETFILTER
            while (data := _waiting(each)) is not None:
                if not data:
                    yield family, NLMSG_ERROR, 0, b""
                    continue
                offset = 0
                while offset + _NLMSG.size <= len(data):
                    length, kind, _, _, port_id = _NLMSG.unpack_from(data, offset)
                    yield family, kind, port_id, data[offset + _NLMSG.size : offset + length]
                    offset += max(_NLMSG.size, (length + 3) & ~3)

    def _setting(self, kind: int, body: bytes) -> str | None:
        if kind == NLMSG_ERROR:
            return "more settings changed at once than could be distinguished"
        if kind == NLMSG_DONE or kind not in _KINDS:
            return None
        if kind == _RTM_NEWLINK and not self._note(body):
            return None
        return self._setting_of(kind, body)

    def _setting_of(self, kind: int, body: bytes) -> str:
        return f"{_KINDS[kind]}{self._place(kind, body)}"

    def _place(self, kind: int, body: bytes) -> str:
        if kind in (_RTM_NEWLINK, _RTM_DELLINK):
            index = _IFINFOMSG.unpack_from(body)[3]
        elif kind in (*_QDISCS, *_CLASSES, *_FILTERS):
            index = _TCMSG.unpack_from(body)[3]
        elif kind in (*_ADDRESSES, *_NEIGHBOURS):
            index = _INDEXED.unpack_from(body)[4]
        else:
            return ""
        return f" on {self._names.get(index, f'interface {index}')}"

    @staticmethod
    def _packet_filter(kind: int) -> str | None:
        """nf_tables' messages have the subsystem (10) in the upper byte and the operation in the lower."""
        if kind == NLMSG_ERROR:
            return "more packet filters changed at once than could be distinguished"
        return _FILTERING.get(kind & 0xFF) if kind >> 8 == _NFNL_SUBSYS_NFTABLES else None

    def _note(self, body: bytes) -> bool:
        """Keep what an interface is; whether it differs from before."""
        _, _, _, index, flags, _ = _IFINFOMSG.unpack_from(body)
        found = dict(attributes(body, _IFINFOMSG.size))
        if _IFLA_NAME in found:
            self._names[index] = found[_IFLA_NAME].rstrip(b"\0").decode(errors="replace")
        reported = tuple(sorted((kind, value) for kind, value in found.items() if kind in _REPORTED_ATTRIBUTES))
        now = _Interface(flags & (_IFF_UP | _IFF_NOARP | _IFF_LOWER_UP), reported)
        before, self._known[index] = self._known.get(index), now
        features = found.get(_IFLA_EVENT, b"\0\0\0\0")[:4] == struct.pack("=I", _IFLA_EVENT_FEATURES)
        return before != now or features


def read_sysctls() -> dict[str, str]:
    """Those of WATCHED_SYSCTLS that this kernel has, in the calling thread's network namespace."""
    found = {}
    for key in WATCHED_SYSCTLS:
        with suppress(FileNotFoundError):
            found[key] = read_sysctl(key)
    return found


def _joined(family: int, groups: tuple[int, ...]) -> socket.socket:
    """A socket of the family that hears the groups."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, family)
    try:
        made.bind((0, 0))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        for group in groups:
            made.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
    except OSError:
        made.close()
        raise
    return made


def _waiting(each: socket.socket) -> bytes | None:
    """The next datagram; None when there is none, empty when some were lost because the buffer was full (ENOBUFS)."""
    try:
        return each.recv(1 << 18)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return b""


def _command_of(process_id: int) -> str:
    """` (tc)`, while it lives."""
    try:
        return f" ({Path(f'/proc/{process_id}/comm').read_text(errors='replace').strip()})"
    except OSError:
        return ""
