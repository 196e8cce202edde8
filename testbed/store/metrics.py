"""What can be compared of runs."""

from typing import Final, Literal

Metric = Literal[
    "iteration_time_s",
    "samples_per_s",
    "compute_time_s",
    "exposed_communication_s",
    "allreduce_time_s",
    "command_time_s",
]
MORE_IS_BETTER: Final = frozenset({"samples_per_s"})
"""Of all others less is."""
