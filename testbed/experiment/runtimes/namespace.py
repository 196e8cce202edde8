"""Hosts are network, mount and UTS namespaces of this machine; one fork server imports torch for all workers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiment.runtimes.base import RUNTIMES, Runtime
from testbed.experiment.workloads.command import Command
from testbed.system.programs import problem_of

if TYPE_CHECKING:
    from testbed.hosts.base import RunningRuntime
    from testbed.plan.plan import Plan
    from testbed.system.run_state import RunState


@RUNTIMES.register
class Namespace(Runtime):
    """Namespaces: the quickest to start, with this machine's Python, as root."""

    def text(self) -> str:
        """One import for all."""
        return "root: coordinator, fork server (imports torch once)"

    def lacks(self, plan: "Plan") -> list[str]:
        """The program of a command."""
        command = plan.experiment.workload
        if not isinstance(command, Command):
            return []
        problem = problem_of(command.argv[0], {**os.environ, **command.environment})
        return [] if problem is None else [f"workload.argv: {problem}"]

    def inherited(self) -> Mapping[str, str]:
        """Those of the laboratory."""
        return os.environ

    def start(self, plan: "Plan", state: "RunState", *, log_directory: Path) -> "RunningRuntime":
        """Start importing what the workload needs."""
        from testbed.hosts.namespace import NamespaceRuntime

        return NamespaceRuntime(state, plan.experiment.workload.preload, log_directory=log_directory)
