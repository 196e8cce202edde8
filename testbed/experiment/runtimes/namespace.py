"""Hosts are network and mount namespaces of this machine; one fork server imports torch for all workers."""

import os
from collections.abc import Mapping
from typing import ClassVar

from testbed.experiment.runtimes.base import RUNTIMES, Runtime


@RUNTIMES.register
class Namespace(Runtime):
    """Namespaces: the quickest to start, with this machine's Python, as root."""

    driver: ClassVar[str] = "testbed.hosts.namespace:NamespaceDriver"
    imports_here: ClassVar[bool] = True
    enters_hosts: ClassVar[bool] = True
    across_machines: ClassVar[bool] = True

    def text(self) -> str:
        """What the runtime starts; torch is imported once for all."""
        return "root: coordinator, fork server (imports torch once)"

    def inherited(self) -> Mapping[str, str]:
        """The controller's environment variables."""
        return os.environ
