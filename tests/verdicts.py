"""What a verdict may say on a machine that is slow, or busy with other things, and says of nothing else."""

from collections.abc import Sequence
from typing import Final

OF_THE_MACHINE: Final = (
    "for a core",
    "hypervisor",
    "busy with other things",
    "other programs took",
    "overran its pace",
    "gradients were ready",
    "cores did not keep up",
    "did not get to run",
    "stood still",
)
"""Words of such reasons, one of which each has."""


def not_of_the_machine(reasons: Sequence[str]) -> list[str]:
    """Those that say something else."""
    return [reason for reason in reasons if not any(words in reason for words in OF_THE_MACHINE)]


def assert_stands(outcome: str, reasons: Sequence[str], *, busy: bool) -> None:
    """On a machine that nobody else uses the run's numbers stand. Beside other load they do, or the verdict names
    that, and nothing else makes the run invalid."""
    if busy:
        assert_no_fault_of_the_links(outcome, reasons)
    else:
        assert outcome in {"valid", "degraded"}, reasons


def assert_no_fault_of_the_links(outcome: str, reasons: Sequence[str]) -> None:
    """The run came to its end, and what makes it invalid, if anything, is the machine. The gravest reasons come first,
    and of those the links' and the sums' before the machine's (testbed/verdict/judge.py)."""
    assert outcome in {"valid", "degraded", "invalid"}, reasons
    assert outcome != "invalid" or not_of_the_machine(reasons[:1]) == [], reasons
