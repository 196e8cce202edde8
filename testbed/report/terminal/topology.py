"""A topology that was read from somebody else's description, as a person reads it."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from testbed.experiment.link import LinkOverride
from testbed.experiment.topologies.base import Topology
from testbed.report.terminal.notes import render_notes
from transports.units import format_rate, format_time


def render_fabric(topology: Topology, console: Console) -> None:
    """How many places, switches and links there are, of which rates and delays, and what was left out; of a topology
    that says all rates."""
    fabric = topology.fabric(0)
    console.print(
        f"[bold]{topology.kind}[/]: {len(fabric.places)} places for hosts on {len(set(fabric.places))} of "
        f"{len(fabric.switches)} switches, {len(fabric.trunks)} links between switches",
        highlight=False,
    )
    table = Table("links of", "rate", "delay", "number")
    access = Counter(_settings(each) for each in fabric.place_links)
    trunks = Counter(_settings(trunk.settings) for trunk in fabric.trunks)
    for name, counted in (("hosts", access), ("switches", trunks)):
        for (rate, delay), number in counted.items():
            table.add_row(name, rate, delay, str(number))
    console.print(table)
    render_notes(topology.assumptions(), console)


def _settings(link: LinkOverride) -> tuple[str, str]:
    return format_rate(link.rate_bps), format_time(link.delay_s) if "delay_s" in link.named else "link.delay"
