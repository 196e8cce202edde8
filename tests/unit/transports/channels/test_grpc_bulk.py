"""Control and data apart: what the side channel carries, and that it waits for its offer."""

import time
from contextlib import closing

from tests.threads import groups, run_threads
from transports.channels.base import CHANNELS, Header, PeerStatistics
from transports.channels.framing import HEADER_BYTES, OPERATIONS
from transports.group import Group


def test_payloads_travel_over_the_side_channel_and_many_are_under_way_at_once() -> None:
    count, num_messages = 100_000, 20

    def life(group: Group) -> PeerStatistics:
        with closing(CHANNELS.parse("grpc_bulk").open(group)) as endpoint:
            peer, views = 1 - group.rank, [memoryview(bytearray(count)) for _ in range(num_messages)]
            left = set()
            for phase, view in enumerate(views):
                header = Header(7, 1, OPERATIONS.index("all_reduce"), 0, count, phase)
                left.add(endpoint.post_send(peer, header, memoryview(bytes([phase]) * count)))
                left.add(endpoint.post_receive(peer, header, view))
            while left:
                left -= {completion.token for completion in endpoint.progress(time.monotonic() + 20)}
            assert [view[-1] for view in views] == list(range(num_messages))
            assert set(endpoint.congestion()) == {peer}
        return endpoint.statistics()[peer]

    for counted in run_threads(life, groups(2)):
        assert counted.payload_bytes_sent == counted.payload_bytes_received == num_messages * (count + HEADER_BYTES)
