"""A simulation as a person reads it, and as a script does."""

from typing import Any, Final

from rich.console import Console
from rich.table import Table

from testbed.record.number_text import digits, percent_text, size_text, time_text
from testbed.report.terminal.notes import render_notes
from testbed.theory.simulation.simulate import Simulation

REACH: Final = (
    "Simulated, not measured: flows that share links fairly. Packets, losses, congestion windows, queues and the "
    "processors that serve the network are not in it."
)
_METHODS: Final = {
    "messages": "every message",
    "steps": "every step of workers that all do the same; phases of a hierarchy one after the other",
}


def simulation_json(found: Simulation) -> dict[str, Any]:
    """The simulation as plain data, for scripts; times in seconds."""
    return {
        "kind": "simulated",
        "workers": found.num_workers,
        "jobs": found.num_jobs,
        "topology": found.topology,
        "method": found.method,
        "iteration_time_s": found.iteration_time_s,
        "iterations_s": [list(each) for each in found.iterations_s],
        "compute_s": found.compute_s,
        "scaling_factor": found.scaling_factor,
        "exchanges_s": list(found.exchanged_s),
        "busiest_links": [link._asdict() for link in found.busiest],
        "assumptions": list(found.assumptions),
    }


def render_simulation(found: Simulation, console: Console) -> None:
    """The answer, what it rests on, and the links that were busiest."""
    jobs = f"{found.num_jobs} jobs of " if found.num_jobs > 1 else ""
    console.print(
        f"[bold]simulated[/]: an iteration of {jobs}{found.num_workers} workers on {found.topology} takes "
        f"{time_text(found.iteration_time_s)}",
        highlight=False,
    )
    if found.scaling_factor is not None and found.alone_s is not None:
        console.print(
            f"  a worker alone computes for {time_text(found.alone_s)}: a scaling factor of "
            f"{percent_text(found.scaling_factor)}",
            highlight=False,
        )
    else:
        console.print("  the spec does not say how long computing takes: this is communication alone", highlight=False)
    shown = ", ".join(time_text(each) for each in found.exchanged_s[:8])
    more = f" and {len(found.exchanged_s) - 8} more" if len(found.exchanged_s) > 8 else ""
    console.print(f"  exchanges of an iteration: {shown}{more}", highlight=False)
    table = Table("busiest links", "carry in an iteration", "of their rate")
    for link in found.busiest:
        table.add_row(link.name, size_text(round(link.num_bytes)), percent_text(link.utilization))
    console.print(table)
    render_notes(found.assumptions, console)
    console.print(f"{_METHODS[found.method]}: {digits(found.num_tasks)} in all. {REACH}", highlight=False, style="dim")
