"""What workers share is all that a configuration names, and forking stays safe with it."""

import subprocess
import sys

from testbed.worker.registries import KINDS, REGISTRIES

PROBE = """
import os, sys
import testbed.worker.registries
print(len(os.listdir("/proc/self/task")), *sorted({"grpc", "torch", "sklearn"} & set(sys.modules)))
"""


def test_every_value_of_every_axis_is_imported() -> None:
    assert {"workload", "collective", "channel", "compression", "slowdown"} <= set(KINDS)
    for registry in REGISTRIES:
        for cls in registry:
            assert cls.__module__ in sys.modules


def test_importing_them_starts_no_thread_and_imports_neither_grpc_nor_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
