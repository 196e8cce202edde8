import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from switch_agg.native.build import build
from testbed.errors import MissingRequirementError
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload
from testbed.worker import agent
from testbed.worker.agent import work_of
from transports.channels.tcp import Tcp

# Other tests of this process may have registered workloads of their own.
OURS = [each for each in WORKLOADS if issubclass(each, AgentWorkload) and each.__module__.startswith("testbed.")]

REQUIRED: dict[str, dict[str, object]] = {"replay": {"trace": "alexnet"}}
"""Options that have no default."""


@pytest.mark.parametrize("kind", [each.__module__.rpartition(".")[2] for each in OURS])
def test_the_entry_of_every_workload_is_a_function_of_options_configuration_and_control(kind: str) -> None:
    workload = WORKLOADS.parse({"kind": kind, **REQUIRED.get(kind, {})})
    assert isinstance(workload, AgentWorkload)
    assert list(inspect.signature(work_of(workload)).parameters) == ["options", "configuration", "control"]


def test_a_worker_whose_image_has_no_libraries_and_no_compiler_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tcp.c").write_text("int nothing;\n")
    monkeypatch.setattr(Tcp, "native_libraries", (lambda: build(tmp_path / "tcp.c", "library"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    configuration = SimpleNamespace(
        dilation=1.0, workload={"kind": "synthetic"}, channel={"kind": "tcp"}, compression={"kind": "none"}, stack=None
    )
    reported: list[Any] = []
    control = SimpleNamespace(configuration=configuration, report=reported.append, close=lambda: None)
    monkeypatch.setattr(agent, "AgentControl", lambda *_: control)
    with pytest.raises(MissingRequirementError, match=r"no cc or gcc to build tcp\.c"):
        agent.main("", "0")
    assert "no cc or gcc to build tcp.c with: apt-get install" in reported[0].failure.error
