"""How many datagrams an interface lets pass as one message: what `ip -d link` shows as `gso_max_segs`, by netlink.

A message of several datagrams (UDP_SEGMENT in udp(7)) goes through the stack and its queues once. A veth pair passes it
on whole, up to that many; of a longer one the kernel makes single datagrams as it leaves the interface's queue.
"""

import fcntl
import socket
import struct
from collections.abc import Iterator
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr of linux/netlink.h: bytes, type, flags, sequence number, port."""
_LINK: Final = struct.Struct("=BxHiII")
"""struct ifinfomsg of linux/rtnetlink.h: family, type, index, flags, change."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_RTM_GETLINK: Final = 18
_RTM_NEWLINK: Final = 16
_NLM_F_REQUEST: Final = 1
_IFLA_GSO_MAX_SEGS: Final = 40
_ANSWER_BYTES: Final = 1 << 16


def max_segments_from(address: str) -> int:
    """Of the calling thread's network namespace's interface with that IPv4 address; 1 where there is none, or where it
    does not say."""
    interface = interface_of(address)
    if interface is None:
        return 1
    try:
        return _max_segments(socket.if_nametoindex(interface))
    except OSError:
        return 1  # gone meanwhile


def interface_of(address: str) -> str | None:
    """The interface of the calling thread's network namespace that has an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(opened, _SIOCGIFADDR, struct.pack("16s24x", name.encode()))
            except OSError:
                continue  # one without an address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def _max_segments(index: int) -> int:
    """Raises OSError."""
    request = _HEADER.pack(_HEADER.size + _LINK.size, _RTM_GETLINK, _NLM_F_REQUEST, 1, 0) + _LINK.pack(
        0, 0, index, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as opened:
        opened.settimeout(5.0)
        opened.send(request)
        answer = opened.recv(_ANSWER_BYTES)
    if _HEADER.unpack_from(answer)[1] != _RTM_NEWLINK:
        return 1
    found = dict(_attributes(answer[_HEADER.size + _LINK.size :])).get(_IFLA_GSO_MAX_SEGS)
    return 1 if found is None else max(1, struct.unpack("=I", found)[0])


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Types and values."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[max(_ATTRIBUTE.size, length + 3 & ~3) :]
