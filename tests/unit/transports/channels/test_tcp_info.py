"""The kernel's account of a connection is the one that the connection saw."""

import socket
import struct

import pytest

from transports.channels.tcp_info import parse_tcp_info, read_tcp_info


def test_bytes_and_segments_of_a_real_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as out:
        taken, _ = listener.accept()
        with taken:
            out.sendall(bytes(10_000))
            received = 0
            while received < 10_000:
                received += len(taken.recv(10_000))
            sent, heard = read_tcp_info(out), read_tcp_info(taken)
    assert sent.bytes_sent == 10_000
    assert sent.bytes_retransmitted == heard.bytes_sent == heard.data_segments_out == 0
    assert heard.acknowledgement_bytes_out == 66 * heard.segments_out > 0


def test_a_kernel_that_says_too_little_is_not_believed() -> None:
    assert parse_tcp_info(bytes(200)) is None


@pytest.mark.parametrize(
    ("out_of_order", "acknowledgement_bytes"),
    [(0, 100 * 66), (40, 100 * 66 + 40 * 20), (5_000, 100 * (66 + 20))],
    ids=["in order", "some out of order", "super-frames of several"],
)
def test_data_out_of_order_is_acknowledged_selectively(out_of_order: int, acknowledgement_bytes: int) -> None:
    data = bytearray(232)
    struct.pack_into("=I", data, 136, 150)  # tcpi_segs_out
    struct.pack_into("=I", data, 156, 50)  # tcpi_data_segs_out
    struct.pack_into("=I", data, 224, out_of_order)  # tcpi_rcv_ooopack
    found = parse_tcp_info(bytes(data))
    older = parse_tcp_info(bytes(data[:220]))
    assert found is not None
    assert older is not None
    assert found.acknowledgement_bytes_out == acknowledgement_bytes
    assert older.acknowledgement_bytes_out == 100 * 66
