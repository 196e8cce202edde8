"""Adding a value to an axis is adding one file: a toy value on each, in a copy of the packages, nothing else touched.

Plan, schema, doctor and the tests that run over a registry find every one. In one copy, because a file that needed
another axis' toy would have to import it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
COPIED: Final = ("testbed", "transports", "switch_agg", "tests")

TOYS: Final[dict[str, tuple[str, str, dict[str, Any], str]]] = {
    "toy_topology": (
        "testbed/experiment/topologies",
        '''
from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology


@TOPOLOGIES.register
class Toy(Topology):
    """Two switches in a row."""

    def fabric(self, num_workers: int) -> Fabric:
        """Half of the workers at each."""
        places = tuple(f"s{number % 2}" for number in range(num_workers))
        return Fabric(switches=("s0", "s1"), trunks=(Edge(first="s0", second="s1"),), places=places)
''',
        {"topology": "toy_topology"},
        "tests/unit/testbed/experiment/topologies/test_base.py",
    ),
    "toy_placement": (
        "testbed/experiment/placements",
        '''
from testbed.experiment.placements.base import PLACEMENTS, Placement


@PLACEMENTS.register
class Toy(Placement):
    """The last places first."""

    def attach(self, places, num_workers, *, seed):
        """From behind."""
        return list(reversed(places))[:num_workers]
''',
        {"placement": "toy_placement", "topology": "dumbbell"},
        "tests/unit/testbed/experiment/placements/test_base.py",
    ),
    "toy_delay": (
        "testbed/experiment/delay_backends",
        '''
from dataclasses import dataclass

from testbed.experiment.delay_backends.base import DELAY_BACKENDS, DelayBackend, DelayStage


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyStage(DelayStage):
    """Delays nothing."""

    interface: str
    index: int

    def differences(self, state):
        """None."""
        return []


@DELAY_BACKENDS.register
class Toy(DelayBackend):
    """A delay on paper."""

    preference = 99
    needs = "nothing"
    sees_frames = True
    cuts_superframes = True

    def unsupported(self, link):
        """None."""
        return {}

    def stage(self, link, *, interface, index, seed):
        """On paper."""
        return ToyStage(interface=interface, index=index)

    def trial(self, program, directory):
        """Works."""
        return ["true"]
''',
        {"link": {"delay": "1ms", "backend": "toy_delay"}},
        "tests/unit/testbed/experiment/delay_backends/test_base.py",
    ),
    "toy_runtime": (
        "testbed/experiment/runtimes",
        '''
from testbed.experiment.runtimes.base import RUNTIMES, Runtime


@RUNTIMES.register
class Toy(Runtime):
    """Namespaces by another name."""

    driver = "testbed.hosts.namespace:NamespaceDriver"

    def text(self):
        """Nothing to say."""
        return "toy"

    def inherited(self):
        """No variables."""
        return {}
''',
        {"runtime": "toy_runtime"},
        "tests/unit/testbed/experiment/runtimes/test_base.py",
    ),
    "toy_workload": (
        "testbed/experiment/workloads",
        '''
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload


@WORKLOADS.register
class Toy(AgentWorkload):
    """Two tensors, and no computing."""

    entry = "testbed.experiment.workloads.toy_workload:work"

    def parameter_counts(self):
        """Of a small model."""
        return [1000, 24]

    def num_iterations(self):
        """Three."""
        return 3

    def phase_lengths(self):
        """No warm-up."""
        return {"measured": 3}


def work(options, configuration, control):
    """Nothing."""
''',
        {"workload": "toy_workload"},
        "tests/unit/testbed/worker/test_agent.py",
    ),
    "toy_collective": (
        "transports/collectives",
        '''
from typing import ClassVar

from transports.collectives.base import COLLECTIVES, Chunk, Collective, Step


@COLLECTIVES.register
class Toy(Collective):
    """Everybody sends all to rank 0, which adds and sends the sum back."""

    operations: ClassVar = frozenset(("all_reduce",))

    def schedule(self, operation, world, participant, num_elements, *, element_bytes, root=0):
        """One message each way."""
        everything = Chunk("output", 0, num_elements)
        others = range(1, world.num_workers)
        if participant == 0:
            return [Step("reduce", everything, each) for each in others] + [
                Step("send", everything, each) for each in others
            ]
        return [Step("send", everything, 0), Step("receive", everything, 0)]
''',
        {"collective": "toy_collective"},
        "tests/contract/test_collectives.py::test_the_bytes_sent_are_the_schedule_s",
    ),
    "toy_channel": (
        "transports/channels",
        '''
from transports.channels.base import CHANNELS
from transports.channels.tcp import Tcp


@CHANNELS.register
class Toy(Tcp):
    """TCP by another name."""
''',
        {"channel": "toy_channel"},
        "tests/contract/test_channels.py::test_messages_arrive_whole_and_in_order",
    ),
    "toy_compression": (
        "transports/compression",
        '''
from transports.compression.base import COMPRESSORS
from transports.compression.fp16 import HalfPrecision


@COMPRESSORS.register
class Toy(HalfPrecision):
    """Half precision by another name."""
''',
        {"compression": "toy_compression"},
        "tests/contract/test_compressors.py::test_bytes_are_those_declared_and_all_get_the_same",
    ),
    "toy_stack": (
        "transports/baselines",
        '''
from transports.baselines.base import STACKS
from transports.baselines.gloo import Gloo


@STACKS.register
class Toy(Gloo):
    """gloo by another name."""
''',
        {"stack": "toy_stack"},
        "tests/contract/test_stacks.py",
    ),
    "toy_background": (
        "testbed/experiment/background",
        '''
from testbed.experiment.background.base import BACKGROUNDS, Background


@BACKGROUNDS.register
class Toy(Background):
    """As much as it gets."""

    protocol = "tcp"

    def source_arguments(self, *, seed):
        """None."""
        return ()

    def offered_bps(self):
        """Nobody knows."""
        return None

    def text(self):
        """Short."""
        return "toy flow"
''',
        {"background": [{"kind": "toy_background", "from": "w0", "to": "w1"}]},
        "tests/unit/testbed/experiment/background/test_base.py",
    ),
    "toy_slowdown": (
        "testbed/experiment/slowdowns",
        '''
from testbed.experiment.slowdowns.base import SLOWDOWNS, Slowdown


@SLOWDOWNS.register
class Toy(Slowdown):
    """Half as fast."""

    def draw(self, random):
        """Two."""
        return 2.0
''',
        {"hosts": {"w0": {"slowdown": "toy_slowdown"}}},
        "tests/unit/testbed/experiment/slowdowns/test_base.py",
    ),
    "toy_fusion": (
        "testbed/experiment/fusion",
        '''
from testbed.experiment.fusion.base import FUSIONS, Fusion


@FUSIONS.register
class Toy(Fusion):
    """Buckets of a page."""

    @property
    def text(self):
        """In words."""
        return "buckets of a page"

    @property
    def limit_bytes(self):
        """A page."""
        return 4096
''',
        {"fusion": "toy_fusion"},
        "tests/unit/testbed/experiment/fusion/test_base.py",
    ),
    "toy_synchronisation": (
        "testbed/experiment/synchronisation",
        '''
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation


@SYNCHRONISATIONS.register
class Toy(Synchronisation):
    """Averages in every third iteration."""

    worker = "testbed.worker.synchronisers:by_averaging"

    @property
    def interval(self):
        """Of iterations."""
        return 3
''',
        {"synchronisation": "toy_synchronisation"},
        "tests/unit/testbed/experiment/synchronisation/test_base.py",
    ),
    "toy_storage": (
        "testbed/experiment/storage",
        '''
from testbed.experiment.storage.base import STORAGES, Storage


@STORAGES.register
class Toy(Storage):
    """The first worker reads for all."""

    def start_bytes(self, rank, num_workers):
        """A kilobyte for each."""
        return 0 if rank else 1000 * num_workers

    def text(self):
        """Who reads what."""
        return "the first worker reads for all"
''',
        {"storage": "toy_storage"},
        "tests/unit/testbed/experiment/storage/test_base.py",
    ),
    "toy_switch": (
        "testbed/experiment/switch_modes",
        '''
from testbed.experiment.switch_modes.base import SWITCH_MODES, SwitchMode


@SWITCH_MODES.register
class Toy(SwitchMode):
    """Routes, by another name."""

    layout = "testbed.plan.addressing:routed"
    routes = True
''',
        {"switch": "toy_switch"},
        "tests/unit/testbed/experiment/switch_modes/test_base.py",
    ),
    "toy_plane": (
        "switch_agg/dataplanes",
        '''
from switch_agg.dataplanes.base import DataPlaneKind, register
from switch_agg.dataplanes.reference import ReferenceDataPlane


@register
class Toy(DataPlaneKind):
    """The reference by another name."""

    @classmethod
    def open(cls, local, *, generation, epochs, program):
        """A process."""
        return ReferenceDataPlane(local, generation=generation, epochs=epochs)
''',
        {"collective": {"kind": "in_network", "dataplane": "toy_plane"}},
        "tests/unit/switch_agg/dataplanes/test_base.py",
    ),
}
"""By kind: the axis' folder, the file, keys of a spec that use it, and tests that run over its registry."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and their tests with every toy, each a file of its own."""
    copied = tmp_path_factory.mktemp("one_file")
    for name in COPIED:
        shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copied)
    for kind, (folder, text, _, _) in TOYS.items():
        path = copied / folder / f"{kind}.py"
        assert not path.exists()
        path.write_text(f'"""A toy."""\n{text}')
    return copied


def run(copied: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", *arguments]
    return subprocess.run(argv, cwd=copied, env=environment, capture_output=True, text=True, timeout=170, check=False)


def test_no_toy_knows_of_another() -> None:
    for kind, (_, text, _, _) in TOYS.items():
        assert not [other for other in TOYS if other != kind and other in text], kind


def test_plan_schema_and_doctor_know_every_toy(copy: Path) -> None:
    done = run(copy, "tests.toys", json.dumps({kind: keys for kind, (_, _, keys, _) in TOYS.items()}))
    assert done.returncode == 0, done.stderr


def test_what_is_no_value_is_reported_of_the_toy(copy: Path) -> None:
    done = run(copy, "testbed", "plan", str(ROOT / "experiments/quickstart.yaml"), "--set", "fusion=other")
    assert done.returncode == 2
    assert "toy_fusion" in done.stderr


def test_the_doctor_lists_what_it_tries(copy: Path) -> None:
    done = run(copy, "testbed", "doctor", "--quick", "--json")
    assert "toy_delay" in done.stdout
    assert "toy_plane" in done.stdout
    assert json.loads(done.stdout)["budget"] is None, "measured beside other tests, it would be the user's from then on"


def test_the_tests_of_every_registry_hold_for_its_toy(copy: Path) -> None:
    """Each with at least one test of its own; together in one process, which imports torch once."""
    tests = sorted({test for _, _, _, test in TOYS.values()})
    done = run(copy, "pytest", "-n", "0", "-q", "-rA", "-p", "no:cacheprovider", "-k", "toy", *tests)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    missing = [kind for kind in TOYS if not any(kind in line for line in passed)]
    assert missing == [], done.stdout[-4000:]
