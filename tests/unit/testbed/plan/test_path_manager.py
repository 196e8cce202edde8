"""What the path manager is given is what is read back; anything else is a difference."""

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.path_manager import PathManager
from testbed.plan.plan import make_plan

MANAGER = PathManager(address="10.0.0.2", num_subflows=3)
ENDPOINTS = [
    {"address": "10.0.0.2", "port": 20_000, "id": 1, "signal": True},
    {"address": "10.0.0.2", "port": 20_001, "id": 2, "signal": True},
]


def test_it_is_given_limits_and_a_port_for_each_further_subflow() -> None:
    assert MANAGER.commands() == [
        "mptcp limits set subflows 2 add_addr_accepted 2",
        "mptcp endpoint add 10.0.0.2 port 20000 signal",
        "mptcp endpoint add 10.0.0.2 port 20001 signal",
    ]


def test_what_differs_is_reported() -> None:
    assert MANAGER.differences("add_addr_accepted 2 subflows 2 \n", ENDPOINTS) == []
    assert "subflows is 8, requested 2" in MANAGER.differences("add_addr_accepted 2 subflows 8", ENDPOINTS)[0]
    assert "add_addr_accepted is None" in MANAGER.differences("subflows 2", ENDPOINTS)[0]
    assert "endpoints are" in MANAGER.differences("add_addr_accepted 2 subflows 2", ENDPOINTS[:1])[0]


def test_stacks_of_a_benchmark_have_the_subflows_that_they_name() -> None:
    def spec(*stacks: str) -> dict[str, object]:
        return {"name": "t", "workers": 2, "workload": {"kind": "allreduce", "stacks": list(stacks)}}

    plan = make_plan(validate(spec("ring/tcp", "ring/mptcp:subflows=8")))
    assert [node.path_manager.num_subflows for node in plan.nodes if node.path_manager] == [8, 8]
    with pytest.raises(SpecError, match=r"workload\.stacks: connections of 4 and of 8 subflows cannot be told apart"):
        make_plan(validate(spec("ring/mptcp:subflows=4", "ring/mptcp:subflows=8")))


def test_workers_have_one_where_connections_have_several_subflows() -> None:
    def managed(channel: object) -> dict[str, int]:
        plan = make_plan(validate({"name": "t", "workers": 2, "channel": channel}))
        return {node.name: node.path_manager.num_subflows for node in plan.nodes if node.path_manager}

    assert managed({"kind": "mptcp", "subflows": 4}) == {"w0": 4, "w1": 4}
    assert managed("mptcp") == {}
    assert managed("tcp") == {}
