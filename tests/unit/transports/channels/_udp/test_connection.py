"""What the two streams have to do with each other; whole connections are in tests/simulation/test_udp.py."""

from switch_agg.window import FixedWindow
from transports.channels._udp.connection import Connection
from transports.channels._udp.pacing import Pacer, WindowPace
from transports.channels.framing import HEADER_BYTES


def test_what_the_machine_did_not_take_of_a_run_is_sent_again() -> None:
    sender = Connection(
        peer=("127.0.0.1", 0),
        local=1,
        remote=2,
        packet_bytes=100,
        window=FixedWindow(1000),
        pace=WindowPace(),
        pacer=Pacer(),
        now_s=0.0,
    )
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(950 - HEADER_BYTES)), 1)
    run = sender.next_run(0.0)
    assert run is not None
    assert (run.num_packets, run.num_bytes) == (10, 950)
    sender.take_back(run, 4, 0.0)
    assert sender.next_run(0.0) is None
    again = sender.next_run(1.0)
    assert again is not None
    assert (again.first, again.num_packets, again.offset, again.num_bytes) == (10, 6, 400, 550)
    assert sender.outgoing.retransmitted_bytes == 0
