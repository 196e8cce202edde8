"""What the kernel says of connections, whatever sockets carry them."""

import socket

import pytest

from testbed.measure.connections import ConnectionMonitor


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_both_ends_of_a_connection_between_ipv4_addresses_are_seen(family: socket.AddressFamily) -> None:
    """gRPC listens on IPv4 addresses through IPv6 sockets: its acknowledgements were missed."""
    address = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = listener.accept()
            with far:
                near.sendall(bytes(1000))
                assert far.recv(1000, socket.MSG_WAITALL) == bytes(1000)
                monitor = ConnectionMonitor()
                ends = {(connection.local, connection.remote) for connection in monitor.connections()}
                monitor.close()
                here, there = near.getsockname()[:2], ("127.0.0.1", port)
    assert {(here, there), (there, here)} <= ends
