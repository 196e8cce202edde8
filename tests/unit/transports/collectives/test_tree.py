"""The tree's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from transports.collectives.cost import sent_bytes
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
    assert 3 * whole_s < time_s(65_536) < 4.2 * whole_s
    assert time_s(4_000_000) > 4.3 * whole_s
