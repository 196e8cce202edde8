"""A topology of somebody else's as a person reads it."""

import io

from rich.console import Console

from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.report.terminal.topology import render_fabric


def test_links_are_counted_by_rate_and_delay_and_notes_follow() -> None:
    hosts = [{"name": f"h.{number}", "at": "s0", "link": {"rate": "10gbit"}} for number in range(3)]
    links = [{"between": ["s0", "s1"], "link": {"rate": "40gbit", "delay": "2us"}}]
    options = {"switches": {"s0": "leaf.0", "s1": "leaf.1"}, "hosts": hosts, "links": links, "notes": ["all is well"]}
    stream = io.StringIO()
    render_fabric(TOPOLOGIES.parse({"kind": "infragraph", **options}), Console(file=stream, width=120))
    text = stream.getvalue()
    assert "3 places for hosts on 1 of 2 switches, 1 links between switches" in text
    rows = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["hosts", "10gbit", "link.delay", "3"] in rows
    assert ["switches", "40gbit", "2us", "1"] in rows
    assert "note all is well" in text
