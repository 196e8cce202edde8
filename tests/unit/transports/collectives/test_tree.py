"""The tree's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from transports.collectives.base import Chunk, Operation
from transports.collectives.cost import sent_bytes
from transports.collectives.network_info import NetworkInfo
from transports.collectives.timing import alpha_beta_time_s
from transports.collectives.tree import Tree


def test_every_edge_carries_everything_up_and_down() -> None:
    counts = sent_bytes(Tree(), "all_reduce", Tree().world(8), 1000, 4)
    assert {count.payload_bytes for count in counts.values()} == {4000}
    assert len(counts) == 2 * 7
    assert {(peer, sender) for sender, peer in counts} == set(counts)


def test_segments_climb_while_others_come_down() -> None:
    def time_s(segment_bytes: int) -> float:
        tree = Tree().model_copy(update={"segment_bytes": segment_bytes})
        world = tree.world(8)
        return alpha_beta_time_s(tree, "all_reduce", world, 1_000_000, 4, alpha_s=1e-5, beta_s_per_byte=8e-9)

    whole_s = 4_000_000 * 8e-9
    # log2(8) = 3 of them pass the root's link each way; without segments, one after the other.
    assert 3 * whole_s < time_s(65_536) < 3.2 * whole_s
    assert time_s(4_000_000) > 3.4 * whole_s, "sixteen of them"


def test_nobody_is_ahead_of_what_comes_back_by_more_than_a_few_messages() -> None:
    """Eight workers: a tree of three levels, and two messages more. The root has nobody to wait for."""
    tree = Tree().model_copy(update={"segment_bytes": 4000, "credit_bytes": 1})
    for participant in range(8):
        steps = list(tree.schedule("all_reduce", tree.world(8), participant, 20_000, element_bytes=4))
        up = [step for step in steps if step.kind == "send" and step.peer < participant]
        chunks = [Chunk("output", 1000 * number, 1000) for number in range(20)]
        assert [step.chunk for step in up] == (chunks if participant else [])
        assert [step.after for step in up[:5]] == [()] * min(len(up), 5)
        assert [step.after for step in up[5:]] == [(chunk,) for chunk in chunks[:15]] * bool(participant)


def test_a_credit_covers_two_round_trips_where_they_are_known() -> None:
    """10 MB among four at 1 Gbit/s: with less, links would wait for what is on its way."""
    near, far = (
        Tree().with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=1e9)) for latency_s in (10e-6, 10e-3)
    )
    assert (near.credit_bytes, far.credit_bytes) == (128 * 1024, 5_000_000)

    def time_s(tree: Tree) -> float:
        world = tree.world(4)
        return alpha_beta_time_s(tree, "all_reduce", world, 2_500_000, 4, alpha_s=10e-3, beta_s_per_byte=8e-9)

    endless = Tree().model_copy(update={"credit_bytes": 2**30})
    assert time_s(far) <= time_s(endless) < 0.8 * time_s(near)


def test_what_only_climbs_or_only_comes_down_waits_for_nothing() -> None:
    operations: tuple[Operation, ...] = ("reduce", "broadcast")
    for operation in operations:
        tree = Tree().model_copy(update={"segment_bytes": 64, "credit_bytes": 1})
        steps = [
            step for each in range(4) for step in tree.schedule(operation, tree.world(4), each, 999, element_bytes=4)
        ]
        assert not any(step.after for step in steps)
