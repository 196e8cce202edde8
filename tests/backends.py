"""Delay backends that this machine has, and those that it has not: what needs one runs with each that is here."""

from typing import Final

from testbed.experiment.delay_backends.base import delay_backends
from testbed.machine.doctor import missing_for_backend

HERE: Final = [kind for kind in delay_backends() if not missing_for_backend(kind)]
ABSENT: Final = [kind for kind in delay_backends() if missing_for_backend(kind)]
"""A kernel in which one is missing runs the tests of the others; tests/netem_vm brings netem."""
