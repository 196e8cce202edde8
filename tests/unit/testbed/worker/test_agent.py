import inspect

import pytest

from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload
from testbed.worker.agent import work_of

# Other tests of this process may have registered workloads of their own.
OURS = [each for each in WORKLOADS if issubclass(each, AgentWorkload) and each.__module__.startswith("testbed.")]

REQUIRED: dict[str, dict[str, object]] = {"replay": {"trace": "alexnet"}}
"""Options that have no default."""


@pytest.mark.parametrize("kind", [each.__module__.rpartition(".")[2] for each in OURS])
def test_the_entry_of_every_workload_is_a_function_of_options_configuration_and_control(kind: str) -> None:
    workload = WORKLOADS.parse({"kind": kind, **REQUIRED.get(kind, {})})
    assert isinstance(workload, AgentWorkload)
    assert list(inspect.signature(work_of(workload)).parameters) == ["options", "configuration", "control"]
