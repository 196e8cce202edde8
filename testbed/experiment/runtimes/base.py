"""What workers, parameter servers and aggregators run in: options; what acts on them is the driver that each names."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from transports.registry import Options, Registry


class Runtime(Options):
    """A value on the runtime axis."""

    driver: ClassVar[str]
    """`module:class`: the testbed.hosts.base.RuntimeDriver that says what is missing and starts the hosts; only where
    that is wanted is it imported."""

    imports_here: ClassVar[bool] = False
    """Whether a process of this machine imports what workers need: it may begin as soon as the spec is known."""

    enters_hosts: ClassVar[bool] = False
    """Whether a process of one host can enter the namespaces of the others, as a launcher wants to."""

    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""

    @abstractmethod
    def text(self) -> str:
        """For `testbed plan`: where imports happen, and what workers run in."""

    @abstractmethod
    def inherited(self) -> Mapping[str, str]:
        """The variables that a program has without being given any."""


RUNTIMES: Final[Registry[Runtime]] = Registry("runtime", "testbed.experiment.runtimes")
