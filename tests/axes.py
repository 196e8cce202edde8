"""Every axis of the experiment space that is a registry."""

from pathlib import Path
from typing import Any, Final

from testbed.experiment.background.base import BACKGROUNDS
from testbed.experiment.delay_backends.base import DELAY_BACKENDS
from testbed.experiment.fusion.base import FUSIONS
from testbed.experiment.placements.base import PLACEMENTS
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.experiment.slowdowns.base import SLOWDOWNS
from testbed.experiment.storage.base import STORAGES
from testbed.experiment.switch_modes.base import SWITCH_MODES
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS
from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.experiment.workloads.base import WORKLOADS
from testbed.runner.engines.base import ENGINES
from testbed.traces.formats.base import TRACE_FORMATS
from testbed.traces.generators.base import GENERATORS
from transports.baselines.base import STACKS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.registry import Registry

ROOT: Final = Path(__file__).resolve().parent.parent
AXES: Final[tuple[Registry[Any], ...]] = (
    TOPOLOGIES,
    PLACEMENTS,
    DELAY_BACKENDS,
    SWITCH_MODES,
    RUNTIMES,
    SLOWDOWNS,
    BACKGROUNDS,
    STORAGES,
    WORKLOADS,
    FUSIONS,
    SYNCHRONISATIONS,
    STACKS,
    CHANNELS,
    COLLECTIVES,
    COMPRESSORS,
    TRACE_FORMATS,
    GENERATORS,
    ENGINES,
)
