"""One program on both backends."""

from tests.random_programs.programs import Program
from tests.random_programs.ranks import Worlds


def compare(worlds: Worlds, program: Program) -> None:
    """Raises AssertionError when gloo does not run it (then the generator is wrong), or testbed does otherwise."""
    expected = worlds.run(program, "gloo")
    found = worlds.run(program, "testbed")
    for rank, (ours, gloo) in enumerate(zip(found, expected, strict=True)):
        assert ours == gloo, f"rank {rank} of {program}"
