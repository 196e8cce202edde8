"""A worker's own counts find the directions that they crossed."""

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.verdict.retransmissions import overheads, unreported
from transports.channels.base import PeerStatistics


def counts(sent: int, acknowledged: int, again: int) -> PeerStatistics:
    return PeerStatistics(payload_bytes_sent=sent, acknowledgement_bytes_sent=acknowledged, retransmitted_bytes=again)


def test_counts_belong_to_every_direction_of_the_path() -> None:
    plan = make_plan(validate({"name": "t", "workers": 3, "channel": "udp"}))
    statistics = {0: {1: counts(100, 20, 3)}, 1: {0: counts(0, 7, 0)}, 2: {1: counts(50, 1, 50)}}

    def found(*hop: str) -> tuple[int, int]:
        each = overheads(statistics, plan.paths, plan.participants, (hop[0], hop[1]))
        return each.acknowledgement_bytes, each.retransmitted_bytes

    assert found("w0", "s0") == (20, 3)
    assert found("s0", "w1") == (21, 53)
    assert found("w1", "s0") == (7, 0)
    assert found("s0", "w2") == (0, 0)


def test_what_servers_send_again_is_unreported_where_only_their_ends_count_it() -> None:
    def found(**keys: object) -> set[tuple[str, str]]:
        return unreported(make_plan(validate({"name": "t", "workers": 2, **keys})))

    dedicated = {"kind": "parameter_server", "servers": 1}
    assert found(channel="udp", collective=dedicated) == {("ps0", "s0"), ("s0", "w0"), ("s0", "w1")}
    assert found(channel="tcp", collective=dedicated) == set()
    assert found(channel="udp", collective=dedicated | {"placement": "co_located"}) == set()
    assert found(channel="udp") == set()
