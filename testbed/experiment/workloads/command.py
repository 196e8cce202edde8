"""A program of the user's, once per worker: what `testbed exec` runs, as a workload like any other.

The workers read the variables that torchrun sets (testbed.runner.user_command). Nothing is known of what they send to
each other, so the verdict is about the links alone.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from testbed.experiment.fusion.base import FUSIONS
from testbed.experiment.host import Limits
from testbed.experiment.workloads.base import WORKLOADS, Workload, unread
from transports.channels.base import Channel
from transports.compression.base import Compressor, require_for_group
from transports.errors import OptionError
from transports.units import Time

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment


@WORKLOADS.register
class Command(Workload):
    """Any program: a torch.distributed script, iperf3, a shell line."""

    fewest_workers: ClassVar[int] = 1

    argv: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments; executed, not read by a shell."""
    backend: Literal["testbed"] | None = None
    """`testbed`: process groups of gloo or nccl, or of no backend in particular, are made with our own, with the spec's
    collective, channel and compression. null: the script's own choice; one that names testbed gets the same."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for every worker, besides torchrun's and what `testbed` itself was started with."""
    master_port: int = Field(29500, ge=1, le=65535)
    """MASTER_PORT, where rank 0 listens on the emulated network."""
    launcher: bool = False
    """Whether the command starts the workers' processes itself, as mpirun does over ssh: it runs in w0 alone, and has
    something in the place of ssh and a file of hosts (TESTBED_SSH, TESTBED_HOSTFILE)."""
    grace_s: Time = Field(10.0, alias="grace", ge=0, le=3600)
    """When one worker has failed, or the run is interrupted, the others have so long to end before they are killed."""

    @field_validator("argv")
    @classmethod
    def _program(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0] or any("\0" in argument for argument in argv):
            raise ValueError("a command begins with the name of a program, and no argument holds a NUL")
        return argv

    @property
    def command(self) -> "Command":
        """See :class:`Workload`."""
        return self

    @property
    def text(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.argv)

    def parameter_counts(self) -> Sequence[int]:
        """Empty: nothing is known of a command's gradients, if it has any."""
        return ()

    def num_iterations(self) -> int:
        """0: a command reports no iterations."""
        return 0

    def phase_lengths(self) -> Mapping[str, int]:
        """Empty: a command reports no iterations."""
        return {}

    def judged_by_links_alone(self) -> bool:
        """True: a command is measured from the first worker's start to the last one's end."""
        return True

    def sends_only_gradients(self) -> bool:
        """False: a command sends what it likes."""
        return False

    def transports(self, experiment: "Experiment") -> Sequence[Channel | Compressor]:
        """None where the script chooses its own backend: nobody knows whether that is ours."""
        return () if self.backend is None else super().transports(experiment)

    def unsupported_compression(self, compressor: Compressor) -> str | None:
        """A process group sees no parameters."""
        try:
            require_for_group(compressor)
        except OptionError as error:
            return str(error).removeprefix("compression ")
        return None

    def incompatibilities(self, experiment: "Experiment") -> Sequence[str]:
        """What only workers of ours would do."""
        found = []
        if experiment.stack is not None:
            found.append(
                f"stack: a command names its backend itself; leave `stack: {experiment.stack.kind}` out, or say "
                "`workload.backend: testbed` to replace what it names"
            )
        if experiment.fusion != FUSIONS.parse({}):
            found.append(
                "fusion: a command forms its own buckets (DistributedDataParallel's bucket_cap_mb); leave it out"
            )
        if experiment.collective.num_servers:
            found.append(
                f"collective: dedicated servers of {experiment.collective.kind} serve workers of ours only; allowed "
                "for a command: `placement: co_located`"
            )
        if self.backend is None:
            found += unread(
                experiment,
                type(experiment)(name="standard"),
                ("collective", "channel", "compression"),
                "nothing reads it where process groups are not made by testbed; leave it out, or say "
                "`workload.backend: testbed` (--backend testbed), also for a script that names testbed itself",
            )
        if experiment.timeout_s != type(experiment)(name="standard").timeout_s:
            found.append(
                "timeout: a command tells the testbed nothing while it runs, so nobody would miss it; leave it out "
                "(how long a process group waits is its own: init_process_group(timeout=...))"
            )
        if self.launcher:
            found += self._launcher_incompatibilities(experiment)
        found += [
            f"hosts.{name}.slowdown: what a command computes cannot be stretched; limit it by `cpu` instead"
            for name, host in experiment.hosts.items()
            if host.slowdown is not None
        ]
        return found

    @staticmethod
    def _launcher_incompatibilities(experiment: "Experiment") -> list[str]:
        """What goes with processes that the testbed starts itself, and not with those of a launcher."""
        found = []
        if not experiment.runtime.enters_hosts:
            found.append(
                f"workload.launcher: it enters the hosts' namespaces from one of them, which processes of runtime "
                f"{experiment.runtime.kind} may not; allowed: runtime: namespace"
            )
        if experiment.workers_per_host.count > 1:
            found.append(
                "workload.launcher: it starts processes on hosts, and here every worker is one; leave workers_per_host "
                "out, and tell the launcher how many processes each host gets"
            )
        return found + [
            f"hosts.{name}: limits hold for what the testbed starts, and a launcher starts processes on other hosts "
            "by itself; leave the limits or workload.launcher out"
            for name, host in experiment.hosts.items()
            if host.limits != Limits()
        ]
