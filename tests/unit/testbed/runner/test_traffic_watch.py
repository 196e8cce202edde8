import os
import socket
import time

from testbed.runner.traffic_watch import TrafficWatch


def test_bytes_that_cross_the_interface_are_noticed() -> None:
    begun_s = time.monotonic()
    watch = TrafficWatch(os.getpid(), "lo", begun_s)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(4):
            sender.sendto(bytes(32_768), ("127.0.0.1", 9))
    watch.look(begun_s + 0.1)
    assert watch.moved_s == begun_s, "it is not looked at more than twice a second"
    watch.look(begun_s + 1.0)
    assert watch.sent_s == watch.received_s == watch.moved_s == begun_s + 1.0


def test_an_interface_or_a_process_that_is_not_there_moves_nothing() -> None:
    for pid, interface in ((os.getpid(), "nobody-eth0"), (2**22 + 1, "lo")):
        watch = TrafficWatch(pid, interface, 1.0)
        watch.look(9.0)
        assert watch.moved_s == 1.0
