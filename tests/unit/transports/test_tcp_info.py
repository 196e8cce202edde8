"""The kernel's account of a connection is the one that the connection saw."""

import socket

from transports.tcp_info import parse_tcp_info, read_tcp_info


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
