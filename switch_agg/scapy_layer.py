"""The aggregation protocol as a scapy layer: build, send and dissect its datagrams in an interactive session.

    >>> from switch_agg.scapy_layer import SwitchAgg
    >>> (IP(dst="10.0.0.1") / UDP(sport=4000, dport=0xBEE0) / SwitchAgg(chunk=7, elements=[1, 2] + 254 * [0])).show()

The fields are those of :mod:`switch_agg.wire`. The layer is bound to UDP's ports 0xBEE0 to 0xBEEF, in both directions,
where the datagrams of p4app-switchML's clients (:mod:`switch_agg.switchml.wire`) travel, too: it shows both.
"""

from array import array
from sys import byteorder
from typing import Any

from scapy.fields import BitEnumField, BitField, ConditionalField, IntField, SignedByteField, StrField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from switch_agg.switchml.wire import TYPE as ORIGINAL
from switch_agg.wire import CARRYING, EXPONENT_ZERO, FORMAT, HEADER, PORTS, SIZES, Kind, size_code


class ElementsField(StrField):
    """Big-endian 32-bit integers to the end of the datagram, as one list: 256 fields of their own would be slow."""

    islist = 1

    def any2i(self, _packet: Packet | None, value: Any) -> list[int]:
        """Whatever is given as a list of integers."""
        return self.m2i(None, value) if isinstance(value, bytes) else list(value or [])

    def m2i(self, _packet: Packet | None, data: bytes) -> list[int]:
        """From the wire; a rest of fewer than four bytes stays outside."""
        words = array("i", data[: len(data) // 4 * 4])
        if byteorder == "little":
            words.byteswap()
        return words.tolist()

    def i2m(self, _packet: Packet | None, value: list[int] | None) -> bytes:
        """To the wire."""
        words = array("i", value or [])
        if byteorder == "little":
            words.byteswap()
        return words.tobytes()

    def i2repr(self, _packet: Packet | None, value: list[int] | None) -> str:
        """The first few."""
        found = value or []
        return f"{found[:4]}{f' ... {len(found)} elements' if len(found) > 4 else ''}"

    def getfield(self, packet: Packet, data: bytes) -> tuple[bytes, list[int]]:
        """As many as the header's size says, if they are there."""
        carries = packet.kind in CARRYING or packet.kind == ORIGINAL
        length = 4 * SIZES.get(packet.size, 0) if carries else 0
        return data[length:], self.m2i(packet, data[:length])


class SwitchAgg(Packet):
    """One datagram of the aggregation protocol; `size` follows from the elements where it is not given.

    Of kind 1, p4app-switchML's own, `job` and `format` are the two halves of its job number, and there is no epoch.
    """

    name = "SwitchAgg"
    fields_desc = (
        BitEnumField(
            "kind", int(Kind.DATA_32), 4, {ORIGINAL: "original", **{int(kind): kind.name.lower() for kind in Kind}}
        ),
        BitField("partial", 0, 1),
        BitField("size", None, 3),
        BitField("job", 0, 4),
        BitField("format", FORMAT, 4),
        IntField("chunk", 0),
        BitField("version", 0, 1),
        BitField("reserved", 0, 1),
        BitField("slot", 0, 14),
        SignedByteField("exponent", EXPONENT_ZERO),
        SignedByteField("contributions", 0),
        ConditionalField(IntField("epoch", 0), lambda packet: packet.kind != ORIGINAL),
        ElementsField("elements", []),
    )

    def self_build(self) -> bytes:
        """The header's size is that of the elements, unless somebody wants it wrong."""
        if self.getfieldval("size") is None:
            count = len(self.getfieldval("elements"))
            sized = self.copy()
            sized.setfieldval("size", size_code(count) if count else 0)
            return bytes(sized.self_build())
        return bytes(super().self_build())

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """In a message that was captured before anything cut it up, the next chunk."""
        another = self.kind in CARRYING and len(payload) >= HEADER.size
        return SwitchAgg if another else super().guess_payload_class(payload)

    def mysummary(self) -> str:
        """One line in a list of packets."""
        return self.sprintf("SwitchAgg %kind% job %job% epoch %epoch% chunk %chunk% slot %slot%.%version%")


for _port in PORTS:
    bind_layers(UDP, SwitchAgg, dport=_port)
    bind_layers(UDP, SwitchAgg, sport=_port)
