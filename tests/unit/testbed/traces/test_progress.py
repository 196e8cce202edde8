"""What a rank may start now. That any valid graph comes to its end is tested with the graphs (test_graph.py)."""

from testbed.traces.graph import Collective, Compute, Node, Receive, Send
from testbed.traces.progress import Progress

GROUP = Collective("all_reduce", 8, "float32", "world")


def taken(progress: Progress) -> list[int]:
    found = []
    while (number := progress.next_exchange()) is not None:
        found.append(number)
    return found


def test_a_node_waits_for_all_that_it_comes_after_and_computing_since_the_last_of_them() -> None:
    nodes: list[Node] = [Compute(1.0), GROUP, Compute(2.0, "", (0, 1))]
    progress = Progress(nodes, 10.0)
    assert progress.next_compute() == (0, 10.0)
    assert progress.next_compute() is None
    assert taken(progress) == [1]
    progress.ended(0, 11.0)
    assert progress.next_compute() is None
    progress.ended(1, 13.0)
    assert progress.next_compute() == (2, 13.0)
    assert not progress.finished
    progress.ended(2, 15.0)
    assert progress.finished


def test_operations_of_a_group_are_started_in_the_lists_order() -> None:
    progress = Progress([Compute(1.0), GROUP._replace(after=(0,)), GROUP, GROUP._replace(group="other")], 0.0)
    assert taken(progress) == [3]
    progress.ended(0, 1.0)
    assert taken(progress) == [1, 2]


def test_messages_of_one_pair_and_tag_keep_their_order_and_others_do_not() -> None:
    late = Send(1, 4, "float32", 0, "", (0,))
    nodes: list[Node] = [
        Compute(1.0),
        late,
        late._replace(after=()),
        Send(1, 4, "float32", 1),
        Receive(1, 4, "float32"),
    ]
    progress = Progress(nodes, 0.0)
    assert sorted(taken(progress)) == [3, 4]
    progress.ended(0, 1.0)
    assert taken(progress) == [1, 2]


def test_computing_goes_in_the_order_in_which_it_becomes_ready() -> None:
    progress = Progress([Compute(1.0), Compute(1.0, "", (3,)), Compute(1.0, "", (0,)), GROUP], 0.0)
    assert taken(progress) == [3]
    assert progress.next_compute() == (0, 0.0)
    progress.ended(3, 0.5)
    progress.ended(0, 1.0)
    assert progress.next_compute() == (1, 0.5)
    assert progress.next_compute() == (2, 1.0)
