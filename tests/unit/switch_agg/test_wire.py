import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switch_agg.errors import WireError
from switch_agg.switchml import wire as original_wire
from switch_agg.wire import (
    HEADER,
    MAX_SLOTS,
    SIZES,
    Kind,
    Packet,
    decode,
    frame_bytes,
    goodput_fraction,
    is_newer,
    size_code,
)

packets = st.builds(
    Packet,
    kind=st.sampled_from([Kind.DATA_32, Kind.SATURATED]),
    job=st.integers(0, 15),
    epoch=st.integers(0, 2**32 - 1),
    chunk=st.integers(0, 2**32 - 1),
    slot=st.integers(0, MAX_SLOTS - 1),
    version=st.integers(0, 1),
    exponent=st.integers(-128, 127),
    contributions=st.integers(0, 32),
    partial=st.booleans(),
    elements=st.sampled_from(sorted(SIZES.values())).map(lambda n: np.arange(n, dtype=np.int32) - 7),
)


def test_the_original_s_own_datagrams_mean_nothing_here() -> None:
    original = original_wire.Packet(3, 7, 5, 1, 3, (-4, 0), np.zeros(256, np.int32))
    with pytest.raises(WireError, match="kind 1 means nothing") as caught:
        decode(original.encode())
    assert caught.value.reason == "bad_kind"


def test_golden_bytes() -> None:
    elements = np.zeros(256, np.int32)
    elements[0] = -1
    packet = Packet(Kind.DATA_32, 7, 0xDEADBEEF, 5, slot=3, version=1, exponent=-4, elements=elements)
    assert packet.encode()[:18].hex(" ") == "93 72 00 00 00 05 80 03 fc 00 de ad be ef ff ff ff ff"


@given(packets)
def test_what_is_encoded_is_decoded(packet: Packet) -> None:
    again = decode(packet.encode())
    assert again._replace(elements=None) == packet._replace(elements=None)
    np.testing.assert_array_equal(again.elements, packet.elements)


@given(packets, st.data())
def test_every_truncation_is_refused(packet: Packet, data: st.DataObject) -> None:
    whole = packet.encode()
    with pytest.raises(WireError) as caught:
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert caught.value.reason == "bad_length"
    with pytest.raises(WireError):
        decode(whole + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_an_error(data: bytes) -> None:
    reason = "none"
    try:
        assert decode(data).encode()[1:] == data[1:]
    except WireError as error:
        reason = error.reason
    assert reason in {"none", "bad_length", "bad_kind", "bad_format", "bad_size", "bad_slot"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("B", 0, 0x03), "bad_kind"),
        (("B", 0, 0xF3), "bad_kind"),
        (("B", 0, 0x97), "bad_size"),
        (("B", 1, 0x01), "bad_format"),
        (("B", 6, 0xC0), "bad_slot"),
    ],
)
def test_fields_that_mean_nothing_are_distinguished(change: tuple[str, int, int], reason: str) -> None:
    data = bytearray(Packet(Kind.DATA_32, 0, 0, 0, elements=np.zeros(256, np.int32)).encode())
    struct.pack_into(change[0], data, change[1], change[2])
    with pytest.raises(WireError) as caught:
        decode(bytes(data))
    assert caught.value.reason == reason


def test_control_is_a_header_alone() -> None:
    packet = Packet(Kind.JOIN, 3, 0xFFFFFFFF, 0xDEADBEEF, slot=31, contributions=127)
    assert len(packet.encode()) == HEADER.size
    assert decode(packet.encode()) == packet
    with pytest.raises(WireError):
        decode(packet.encode() + b"\0" * 4)


@pytest.mark.parametrize("num_elements", sorted(SIZES.values()))
def test_frames_are_as_long_as_said(num_elements: int) -> None:
    packet = Packet(Kind.DATA_32, 0, 0, 0, elements=np.zeros(num_elements, np.int32))
    frame = bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=4000, dport=0xBEE0) / packet.encode())
    assert len(frame) == frame_bytes(num_elements)
    assert goodput_fraction(num_elements) == 4 * num_elements / len(frame)
    assert 32 << size_code(num_elements) == num_elements


def test_sizes_without_a_code_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: 32, 64"):
        size_code(100)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**31 - 1))
def test_chunk_numbers_go_round(chunk: int, step: int) -> None:
    assert is_newer((chunk + step) & 0xFFFFFFFF, chunk)
    assert not is_newer(chunk, (chunk + step) & 0xFFFFFFFF)
    assert not is_newer(chunk, chunk)
