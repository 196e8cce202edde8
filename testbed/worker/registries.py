"""Every axis that a worker's configuration names a value of, with all values imported.

Nothing but this package: imported before the fork it is shared by all workers, each of which would otherwise import
some eighty modules of its own.
"""

from typing import Any, Final

from testbed.experiment.slowdowns.base import SLOWDOWNS
from testbed.experiment.workloads.base import WORKLOADS
from transports.baselines.base import STACKS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.registry import Registry

REGISTRIES: Final[tuple[Registry[Any], ...]] = (WORKLOADS, COLLECTIVES, CHANNELS, COMPRESSORS, STACKS, SLOWDOWNS)
KINDS: Final = {registry.axis: registry.kinds() for registry in REGISTRIES}
"""The values of each axis; listing them has imported them."""
