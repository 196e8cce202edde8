import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.errors import WireError
from switch_agg.switchml.wire import HEADER, MAX_DATAGRAM_BYTES, NUM_ELEMENTS, Packet, decode, frame_bytes

packets = st.builds(
    Packet,
    size=st.sampled_from(sorted(NUM_ELEMENTS)),
    job_number=st.integers(0, 255),
    tsi=st.integers(0, 2**32 - 1),
    pool_set=st.integers(0, 1),
    slot=st.integers(0, 2**14 - 1),
    exponents=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    elements=st.just(np.zeros(0, np.int32)),
).map(lambda packet: packet._replace(elements=np.arange(NUM_ELEMENTS[packet.size], dtype=np.int32) - 7))


def test_the_original_s_golden_bytes() -> None:
    elements = np.zeros(256, np.int32)
    elements[:3] = [1, -1, 2**31 - 1]
    data = Packet(3, 7, 5, 1, 3, (-4, 9), elements).encode()
    assert data[:10].hex(" ") == "13 07 00 00 00 05 80 03 fc 09"
    assert data[10:22].hex(" ") == "00 00 00 01 ff ff ff ff 7f ff ff ff"
    assert len(data) == MAX_DATAGRAM_BYTES == 1034
    assert [frame_bytes(number) for number in NUM_ELEMENTS.values()] == [308, 1076]


@given(packets)
def test_what_is_encoded_is_decoded(packet: Packet) -> None:
    again = decode(packet.encode())
    assert again._replace(elements=packet.elements) == packet
    np.testing.assert_array_equal(again.elements, packet.elements)


@given(packets, st.data())
def test_every_truncation_is_refused(packet: Packet, data: st.DataObject) -> None:
    whole = packet.encode()
    for wrong in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"):
        with pytest.raises(WireError) as caught:
            decode(wrong)
        assert caught.value.reason == "bad_length"


@pytest.mark.parametrize("size", [0, 2, 4, 5, 6, 7])
def test_sizes_that_the_program_drops_are_refused(size: int) -> None:
    with pytest.raises(WireError) as caught:
        decode(bytes([0x10 | size]) + bytes(HEADER.size - 1 + 4 * 32 * 2**size))
    assert caught.value.reason == "bad_size"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_an_error(data: bytes) -> None:
    reason = "none"
    try:
        decode(data)
    except WireError as error:
        reason = error.reason
    assert reason in {"none", "bad_length", "bad_size"}
