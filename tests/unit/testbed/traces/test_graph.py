"""Which graphs can be replayed, and where those that cannot are wrong."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.traces.graph import Collective, Compute, Graph, GraphError, Node, Receive, Send, lane
from testbed.traces.progress import Progress

WORLD = {"world": (0, 1)}


def graph(*ranks: Sequence[Node], groups: dict[str, tuple[int, ...]] | None = None) -> Graph:
    return Graph(ranks=tuple(map(tuple, ranks)), groups=WORLD if groups is None else groups)


def reduced(count: int = 8, **more: Any) -> Collective:
    return Collective("all_reduce", count, "float32", "world")._replace(**more)


def to(peer: int, count: int = 4, **more: Any) -> Send:
    return Send(peer, count, "float32")._replace(**more)


def of(peer: int, count: int = 4, **more: Any) -> Receive:
    return Receive(peer, count, "float32")._replace(**more)


@pytest.mark.parametrize(
    ("ranks", "groups", "problem"),
    [
        ([[Compute(-1.0, "x")]], {}, r"rank 0, node 0 \(x\): it computes for -1 s"),
        ([[Compute(float("nan"))]], {}, "rank 0, node 0: it computes for nan s"),
        ([[Compute(1.0, "\ud800")]], {}, r"rank 0, node 0: its name '\\ud800' is no text"),
        ([[], []], {"\udfff": (0, 1)}, r"a group: its name '\\udfff' is no text"),
        ([[Compute(1e9)]], {}, "allowed: 0 to 86400 s"),
        ([[Compute(1.0, after=(3,))]], {}, "rank 0, node 0: it waits for node 3, and this rank has nodes 0 to 0"),
        ([[Compute(1.0, after=(0,))]], {}, "rank 0, node 0: it waits for itself"),
        ([[Compute(1.0, after=(1,)), Compute(1.0, after=(0,))]], {}, "in a circle of rank 0, node"),
        ([[reduced()], [reduced(operation="all_sum")]], None, "rank 1, node 0: operation 'all_sum' is not known"),
        ([[reduced()], [reduced(9)]], None, "all_reduce of 9 float32 meets all_reduce of 8 float32"),
        ([[reduced()], [reduced(element_type="float16")]], None, "float16 meets"),
        ([[reduced(element_type="complex64")], []], None, "of type 'complex64'; allowed: uint8"),
        ([[reduced(-4)], [reduced(-4)]], None, "-4 elements"),
        ([[reduced(2**40)], [reduced(2**40)]], None, "allowed: none to"),
        ([[reduced(), reduced()], [reduced()]], None, "rank 0, node 1: rank 1 of its group has only 1 operations"),
        ([[reduced(group="other")], []], None, "no group 'other'; there are: world"),
        ([[reduced(group="two")], [], []], {"two": (1, 2)}, "rank 0 is not in group 'two'"),
        ([[reduced(root=0)], [reduced(root=0)]], None, "all_reduce has no root"),
        ([[reduced(operation="broadcast")]] * 2, None, "broadcast needs a root"),
        ([[reduced(operation="broadcast", root=2)]] * 2, None, "root 2 is not in group"),
        ([[reduced(operation="reduce", root=0)], [reduced(operation="reduce", root=1)]], None, "root 1 meets"),
        ([[reduced(7, operation="all_gather")]] * 2, None, "7 elements are not 2 equal parts"),
        ([[reduced(operation="barrier")]] * 2, None, "a barrier moves no elements"),
        ([[reduced(splits=(4, 4))]] * 2, None, "only all_to_all has splits"),
        ([[reduced(operation="all_to_all", splits=(4, 5))]] * 2, None, "splits are 9 elements, and the node has 8"),
        ([[reduced(operation="all_to_all", splits=(8,))]] * 2, None, "for each of 2 members"),
        ([[reduced(operation="all_to_all", splits=(9, -1))]] * 2, None, "for each of 2 members"),
        ([[to(1)], []], {}, "rank 0, node 0: rank 1 never receives it"),
        ([[], [of(0)]], {}, "rank 1, node 0: it receives what rank 0 never sends"),
        ([[to(1)], [of(0), of(0)]], {}, "rank 1, node 1: rank 0 sends 1 such messages only"),
        ([[to(1)], [of(0, 5)]], {}, "rank 1, node 0: it expects 5 float32, and rank 0, node 0 sends 4 float32"),
        ([[to(1, tag=1)], [of(0, tag=2)]], {}, "never receives it"),
        ([[to(0)]], {}, "rank 0 of 1 exchanges no messages with rank 0"),
        ([[to(1, tag=-1)], []], {}, "tag -1; allowed: 0 to"),
        ([[]], {"one": (0,)}, "group one: 1 members have nobody"),
        ([[], []], {"g": (1, 0)}, "ascending order"),
        ([[], []], {"g": (0, 2)}, "ranks from 0 to 1"),
        ([], {}, "1 to 65536 ranks"),
        # waiting for each other over ranks
        ([[to(1, after=(1,)), of(1)], [to(0, after=(1,)), of(0)]], {}, "it waits for itself, in a circle of rank"),
        ([[reduced(after=(1,)), of(1)], [to(0, after=(1,)), reduced()]], None, "it waits for itself"),
        ([[reduced(), of(1)], [reduced(after=(1,)), to(0, after=(0,))]], None, "it waits for itself"),
        # a group's order is the list's
        ([[reduced(after=(1,)), reduced()], [reduced(), reduced()]], None, "it waits for itself"),
    ],
)
def test_what_nobody_could_replay_is_refused_with_its_place(
    ranks: list[list[Node]], groups: dict[str, tuple[int, ...]] | None, problem: str
) -> None:
    with pytest.raises(GraphError, match=problem):
        graph(*ranks, groups=groups)


def test_messages_that_cross_are_no_circle() -> None:
    crossed = graph([to(1), of(1)], [to(0), of(0)], groups={})
    assert crossed.matches == (((0, 0), (1, 1)), ((1, 0), (0, 1)))
    assert crossed.sent_bytes == 32


def test_a_collective_is_matched_by_its_place_in_the_group() -> None:
    found = graph([Compute(1.0), reduced(), reduced(16)], [reduced(), reduced(16)])
    assert found.matches == (((0, 1), (1, 0)), ((0, 2), (1, 1)))


def test_a_rank_computes_one_thing_at_a_time_and_waits_for_others() -> None:
    waits = graph([Compute(1.0), Compute(2.0), to(1, after=(0,))], [of(0), Compute(4.0, after=(0,))], groups={})
    assert waits.critical_path_s() == pytest.approx(5.0)
    assert waits.compute_s(0) == pytest.approx(3.0)
    assert waits.longest_wait_s() == pytest.approx(1.0), "the receive, from the beginning on"


def test_one_group_of_all_ranks_can_be_the_jobs_own() -> None:
    groups: dict[str, tuple[int, ...]] = {"a": (0, 1), "b": (0, 1)}
    assert graph([reduced(group="b")], [reduced(group="b")], groups=groups).first_group_of_all == "a"
    assert graph([Compute(1.0)], [Compute(1.0)], groups={}).first_group_of_all is None


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Graphs that are valid by construction: what exchanges there are is drawn first, and ranks take part in order."""
    num_ranks = draw(st.integers(2, 4))
    groups = {"world": tuple(range(num_ranks)), "first": (0, 1)}
    ranks: list[list[Node]] = [[] for _ in range(num_ranks)]

    def append(rank: int, node: Node) -> None:
        count = len(ranks[rank])
        after = draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True)) if count else []
        ranks[rank].append(node._replace(after=tuple(after)))

    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["compute", "collective", "splits", "message"]))
        if kind == "compute":
            append(draw(st.integers(0, num_ranks - 1)), Compute(draw(st.floats(0, 1))))
        elif kind == "message":
            sender, receiver = draw(st.permutations(range(num_ranks)))[:2]
            count, tag = draw(st.integers(0, 9)), draw(st.integers(0, 1))
            append(sender, Send(receiver, count, "int32", tag))
            append(receiver, Receive(sender, count, "int32", tag))
        else:
            name = draw(st.sampled_from(sorted(groups)))
            for member in groups[name]:
                node = Collective("all_reduce", 8, "float32", name)
                if kind == "splits":
                    splits = tuple(draw(st.integers(0, 5)) for _ in groups[name])
                    node = Collective("all_to_all", sum(splits), "float32", name, splits=splits)
                append(member, node)
    return graph(*ranks, groups=groups)


@given(programs(), st.integers(0, 2**32))
def test_what_is_accepted_comes_to_its_end_in_whatever_order_things_happen(found: Graph, seed: int) -> None:
    """Exchanges end, in any order, when all who take part have started them."""
    choose = random.Random(seed)
    ranks = [Progress(nodes, 0.0) for nodes in found.ranks]
    match_of = {place: match for match in found.matches for place in match}
    started: dict[tuple[tuple[int, int], ...], set[int]] = {}
    order: dict[tuple[int, str], list[int]] = {}
    possible: list[tuple[tuple[int, int], ...]] = []
    now_s = 0.0
    while not all(rank.finished for rank in ranks):
        for number, rank in enumerate(ranks):
            while (node := rank.next_exchange()) is not None:
                match = match_of[number, node]
                started.setdefault(match, set()).add(number)
                order.setdefault((number, str(lane(found.ranks[number][node]))), []).append(node)
                if len(started[match]) == len(match):
                    possible.append(match)
            if (ready := rank.next_compute()) is not None:
                possible.append(((number, ready.number),))
        assert possible, "nothing can happen any more"
        now_s += 1
        for rank_number, node in possible.pop(choose.randrange(len(possible))):
            ranks[rank_number].ended(node, now_s)
    for key, nodes in order.items():
        assert nodes == sorted(nodes), key


@given(st.data(), programs())
@settings(max_examples=200)
def test_any_change_to_a_graph_is_valid_or_refused_with_a_place(data: st.DataObject, found: Graph) -> None:
    ranks = [list(nodes) for nodes in found.ranks]
    rank = data.draw(st.sampled_from([number for number, nodes in enumerate(ranks) if nodes]))
    number = data.draw(st.integers(0, len(ranks[rank]) - 1))
    node = ranks[rank][number]
    name = data.draw(st.sampled_from(node._fields))
    values: dict[str, st.SearchStrategy[Any]] = {
        "duration_s": st.floats(),
        "after": st.lists(st.integers(-1, 12), max_size=3).map(tuple),
        "splits": st.none() | st.lists(st.integers(-1, 9), max_size=4).map(tuple),
        "operation": st.sampled_from(["reduce", "barrier", "broadcast", "sum", ""]),
        "element_type": st.sampled_from(["uint8", "float64", "x"]),
        "group": st.sampled_from(["world", "first", "x"]),
        "name": st.text(max_size=3),
    }
    ranks[rank][number] = node._replace(**{name: data.draw(values.get(name, st.integers(-2, 2**70)))})
    try:
        outcome = "valid" if Graph(ranks=tuple(map(tuple, ranks)), groups=found.groups).critical_path_s() >= 0 else ""
    except GraphError as error:
        outcome = str(error)
    assert outcome.startswith(("valid", "rank "))
