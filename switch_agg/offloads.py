"""Whether an interface cuts messages of several datagrams up itself: the features of ethtool(8), by its ioctls.

A veth pair has `tx-udp-segmentation` on, which means that it passes such a message on whole, to be cut up by the last
receiver; a program on the way would then see one long datagram. With the feature off, the kernel cuts it up behind the
interface's queue.
"""

import array
import fcntl
import socket
import struct
from functools import cache
from typing import Final

UDP_SEGMENTATION: Final = "tx-udp-segmentation"
_SIOCGIFADDR: Final = 0x8915
_SIOCETHTOOL: Final = 0x8946
_GET_STRINGS: Final = 0x1B
_GET_SIZES: Final = 0x37
_GET_FEATURES: Final = 0x3A
_SET_FEATURES: Final = 0x3B
_FEATURES: Final = 4
"""ETH_SS_FEATURES of linux/ethtool.h: the set of the features' names."""
_NAME_BYTES: Final = 32
_WORD_BITS: Final = 32


def is_on(interface: str, feature: str) -> bool:
    """Whether an interface of the calling thread's network namespace has it. Raises OSError."""
    index, num_words = _place(interface, feature)
    requested = _call(interface, struct.pack("=II", _GET_FEATURES, num_words) + bytes(16 * num_words))
    _, _, active, _ = struct.unpack_from("=4I", requested, 8 + 16 * (index // _WORD_BITS))
    return bool(active >> index % _WORD_BITS & 1)


def switch_off(interface: str, feature: str) -> None:
    """Raises OSError, also where it cannot be switched off."""
    index, num_words = _place(interface, feature)
    words = [(0, 0)] * num_words
    words[index // _WORD_BITS] = (1 << index % _WORD_BITS, 0)
    _call(
        interface, struct.pack("=II", _SET_FEATURES, num_words) + b"".join(struct.pack("=2I", *each) for each in words)
    )
    if is_on(interface, feature):
        raise OSError(f"{interface}: {feature} cannot be switched off")


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


def cuts_messages(address: str) -> bool:
    """Whether what leaves by the interface with that address is cut up into datagrams before it does."""
    interface = interface_of(address)
    try:
        return interface is not None and not is_on(interface, UDP_SEGMENTATION)
    except OSError:
        return False  # one without ethtool's features


@cache
def _names(interface: str) -> tuple[str, ...]:
    """Every feature's, by index: the kernel's, whatever the interface."""
    (count,) = struct.unpack_from("=I", _call(interface, struct.pack("=IIQI", _GET_SIZES, 0, 1 << _FEATURES, 0)), 16)
    found = _call(interface, struct.pack("=III", _GET_STRINGS, _FEATURES, count) + bytes(_NAME_BYTES * count))
    return tuple(
        found[12 + at * _NAME_BYTES : 12 + (at + 1) * _NAME_BYTES].split(b"\0")[0].decode() for at in range(count)
    )


def _place(interface: str, feature: str) -> tuple[int, int]:
    """A feature's index, and the number of words that hold all features. Raises OSError."""
    names = _names(interface)
    if feature not in names:
        raise OSError(f"{interface}: this kernel knows no feature {feature}")
    return names.index(feature), -(-len(names) // _WORD_BITS)


def _call(interface: str, request: bytes) -> bytes:
    buffer = array.array("B", request)
    address, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _SIOCETHTOOL, struct.pack("16sQ16x", interface.encode(), address))
    return buffer.tobytes()
