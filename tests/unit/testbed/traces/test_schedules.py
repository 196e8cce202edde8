import pytest

from testbed.errors import SpecError
from testbed.traces.graph import Compute
from testbed.traces.schedules import schedule_graph
from transports.collectives.base import COLLECTIVES


def test_servers_are_ranks_after_the_workers() -> None:
    collective = COLLECTIVES.parse({"kind": "parameter_server", "servers": 2})
    graph = schedule_graph(collective, "all_reduce", 3, 1000, "float32")
    assert graph.num_ranks == 5
    assert sum(isinstance(node, Compute) for node in graph.ranks[3]) > 0
    assert not any(isinstance(node, Compute) for node in graph.ranks[0])


def test_what_is_added_in_the_network_has_no_schedule_among_ranks() -> None:
    with pytest.raises(SpecError, match="in_network adds in the network"):
        schedule_graph(COLLECTIVES.parse("in_network"), "all_reduce", 4, 1000, "float32")


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(SpecError, match="'sum' is not known; allowed: all_reduce"):
        schedule_graph(COLLECTIVES.parse("ring"), "sum", 4, 1000, "float32")  # type: ignore[arg-type]
