"""What holds for every runtime."""

import importlib

import pytest

from testbed.experiment.experiment import validate
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.hosts.base import RuntimeDriver, runtime_driver
from testbed.plan.plan import make_plan


@pytest.mark.parametrize("kind", RUNTIMES.kinds())
def test_its_driver_is_there_and_says_which_nodes_it_makes(kind: str) -> None:
    plan = make_plan(validate({"name": "x", "workers": 2, "runtime": kind}))
    runtime = plan.experiment.runtime
    module, _, name = runtime.driver.partition(":")
    assert issubclass(getattr(importlib.import_module(module), name), RuntimeDriver)
    assert set(runtime_driver(plan).contained()) <= {node.name for node in plan.nodes}
    assert runtime.text()
    assert all(isinstance(value, str) for value in runtime.inherited().values())
