"""Delay backends that this machine has, and those that it has not: what needs one runs with each that is here."""

from typing import Final

from testbed.experiment.delay_backends.base import delay_backends
from testbed.machine.doctor import backend_lacks

HERE: Final = [kind for kind in delay_backends() if not backend_lacks(kind)]
ABSENT: Final = [kind for kind in delay_backends() if backend_lacks(kind)]
"""A kernel that lacks one runs the tests of the others; tests/netem_vm brings netem."""
