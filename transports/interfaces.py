"""Network interfaces of this machine and their IPv4 addresses."""

import fcntl
import socket
import struct
from typing import Final

from transports.errors import UnsupportedError

_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_IFNAMSIZ: Final = 16  # linux/if.h


def address_of_interface(interface: str) -> str:
    """The first IPv4 address of the interface (netdevice(7)). Raises UnsupportedError when it has none."""
    request = struct.pack(f"{_IFNAMSIZ}s{_IFNAMSIZ}x", interface.encode()[: _IFNAMSIZ - 1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            raise UnsupportedError(
                f"TESTBED_INTERFACE: {interface!r} has no IPv4 address ({error.strerror}); "
                "`ip -4 address` lists those that have"
            ) from None
    # struct ifreq: the name, then a sockaddr_in whose address follows family and port.
    return socket.inet_ntoa(reply[_IFNAMSIZ + 4 : _IFNAMSIZ + 8])


def interface_of_address(address: str) -> str:
    """The interface that has this IPv4 address. Raises UnsupportedError when none has."""
    for _, interface in socket.if_nameindex():
        try:
            found = address_of_interface(interface)
        except UnsupportedError:
            continue
        if found == address:
            return interface
    raise UnsupportedError(f"no interface has the address {address}; `ip -4 address` lists those there are")
