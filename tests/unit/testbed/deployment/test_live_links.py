import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.deployment.live_links import LinkChangeEvent, LiveLinks
from testbed.errors import MissingRequirementError, RunFailedError, SpecError
from testbed.experiment.changes import LinkChange, timeline
from testbed.experiment.experiment import validate
from testbed.experiment.link import parse_override
from testbed.plan.direction import Direction
from testbed.plan.plan import Plan, make_plan


@dataclass
class Network:
    """A deployment that takes every change."""

    planned: Plan
    error: Exception | None = None
    down: set[Any] = field(default_factory=set)
    num_restarts: int = 0
    num_readings: int = 0
    change_s: float = 0.0
    """That a change of one direction takes."""
    has_read: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.plan = self.planned.real()
        self.directions = {direction.hop: direction for direction in self.plan.directions}

    def restart_draws(self) -> None:
        self.num_restarts += 1

    def line_counters(self) -> dict[Any, SimpleNamespace]:
        self.num_readings += 1
        self.has_read.set()
        return {hop: SimpleNamespace(num_bytes=0, backlog_bytes=0, num_drops=0) for hop in self.directions}

    def delay_counters(self) -> dict[Any, Any]:
        return {}

    def is_down(self, direction: Direction) -> bool:
        return direction.hop in self.down

    def change(self, direction: Direction, *, down: bool) -> None:
        if self.error:
            raise self.error
        time.sleep(self.change_s)
        self.directions[direction.hop] = direction
        (self.down.add if down else self.down.discard)(direction.hop)


def network(**keys: object) -> Network:
    return Network(make_plan(validate({"name": "t", "workers": 2, **keys}), works=lambda name: name == "nfqueue"))


def accepted(deployment: Network) -> tuple[LiveLinks, list[LinkChangeEvent]]:
    links, events = LiveLinks(deployment), []  # type: ignore[arg-type,var-annotated]
    links.accept(events.extend)
    return links, events


def manual_change(link: str, *, down: bool | None = None, **settings: str) -> LinkChange:
    return LinkChange(
        at_s=0.0, link=link, settings=parse_override(settings), down=down, source="manual", key="link set"
    )


def test_before_and_after_the_run_nothing_changes() -> None:
    links = LiveLinks(network())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="cannot be changed now"):
        links.change(manual_change("w1-s0", rate="50mbit"))
    links.accept(lambda _: None)
    links.close()
    with pytest.raises(SpecError, match="cannot be changed now"):
        links.change(manual_change("w1-s0", rate="50mbit"))


def test_what_is_not_named_stays_through_several_changes() -> None:
    deployment = network()
    links, events = accepted(deployment)
    links.change(manual_change("w1-s0", rate="50mbit"))
    links.change(manual_change("w1->s0", queue="200kB"))
    direction = deployment.directions["w1", "s0"]
    assert (direction.rate_bps, direction.shaper.rate_bps, direction.shaper.queue_bytes) == (50e6, 50e6, 200_000)
    assert deployment.directions["s0", "w1"].shaper.queue_bytes == 1_000_000
    assert [(event.node, event.setting, event.before, event.after) for event in events] == [
        ("w1", "rate", "100mbit", "50mbit"),
        ("s0", "rate", "100mbit", "50mbit"),
        ("w1", "queue", "1MB", "200kB"),
    ]
    assert {event.rate_bps for event in events} == {50e6}


def test_down_and_up_are_marks_of_the_carrier_and_asking_twice_changes_nothing() -> None:
    links, events = accepted(network())
    for down in (True, True, False):
        links.change(manual_change("w1->s0", down=down))
    assert [(event.setting, event.before, event.after) for event in events] == [
        ("carrier", "up", "down"),
        ("carrier", "down", "up"),
    ]


def test_a_link_without_a_delay_line_is_refused_and_nothing_of_the_change_is_made() -> None:
    deployment = network(links={"w0-s0": {"delay": "1ms"}})
    links, events = accepted(deployment)
    with pytest.raises(SpecError, match="without a delay line"):
        links.change(manual_change("w*-s0", delay="2ms", rate="50mbit"))
    assert events == []
    assert {direction.rate_bps for direction in deployment.directions.values()} == {100e6}
    links.change(manual_change("w0-s0", delay="2ms"))
    assert deployment.directions["w0", "s0"].delay_s == 0.002
    links.check()


def test_a_rate_that_would_really_be_too_low_is_refused_as_a_spec_is() -> None:
    deployment = network(workload="synthetic", dilation=100)
    links, events = accepted(deployment)
    with pytest.raises(SpecError, match=r"link set\.rate: w1 -> s0 has 50mbit, which would really be 0\.5mbit"):
        links.change(manual_change("w1->s0", rate="50mbit"))
    assert events == []
    links.check()


def test_who_looks_at_links_keeps_nobody_from_changing_them() -> None:
    """The rate in use takes two readings, and a fifth of a second between them."""

    def changes_between_readings() -> bool:
        deployment = network()
        links, _ = accepted(deployment)
        looking = threading.Thread(target=links.now)
        looking.start()
        deployment.has_read.wait(10)
        links.change(manual_change("w1-s0", rate="50mbit"))
        between = deployment.num_readings == 1
        links.close()
        looking.join()
        return between

    assert any(changes_between_readings() for _ in range(10)), "unless this thread got no core for so long each time"


def test_ecn_marking_that_is_set_manually_needs_connections_that_ask_for_them() -> None:
    links, events = accepted(network(link={"backend": "tap"}))
    with pytest.raises(SpecError, match="began without ECN"):
        links.change(manual_change("w1-s0", ecn="100kB"))
    assert events == []
    later = network(link={"backend": "tap"}, changes=[{"at": "1h", "link": "s0->w0", "ecn": "100kB"}])
    assert {node.sysctls["net.ipv4.tcp_ecn"] for node in later.plan.nodes} == {"1"}
    links, events = accepted(later)
    links.change(manual_change("w1->s0", ecn="100kB", loss="1%"))
    assert [(event.setting, event.before, event.after) for event in events] == [
        ("loss", "0%", "1%"),
        ("ecn", "none", "100kB"),
    ]


def test_a_schedule_that_breaks_for_whatever_reason_ends_the_run() -> None:
    deployment = network(changes=[{"at": "0s", "link": "w1-s0", "rate": "20mbit"}])
    deployment.error = OSError("the socket is gone")
    links, _ = accepted(deployment)
    links.begin(timeline(deployment.plan.experiment.changes))
    deadline_s = time.monotonic() + 10
    found: RunFailedError | None = None
    while found is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
        try:
            links.check()
        except RunFailedError as error:
            found = error
    assert str(found) == "changes.0: OSError: the socket is gone"
    links.close()


def test_the_schedule_is_followed_from_the_first_iteration_at_the_runs_dilation() -> None:
    deployment = network(
        changes=[
            {"at": "40ms", "link": "w1-s0", "rate": "20mbit"},
            {"at": "20ms", "link": "w1-s0", "rate": "50mbit"},
            {"at": "1h", "link": "w1-s0", "rate": "70mbit"},
        ],
        workload="synthetic",
        dilation=2,
    )
    links, events = accepted(deployment)
    begun_s = time.monotonic()
    links.begin(timeline(deployment.plan.experiment.changes))
    while len(events) < 4 and time.monotonic() < begun_s + 10:
        time.sleep(0.005)
    links.close()
    links.check()
    assert [event.after for event in events] == ["50mbit", "50mbit", "20mbit", "20mbit"]
    assert events[0].at_s - begun_s >= 0.04
    assert events[2].at_s - begun_s >= 0.08
    assert {event.source for event in events} == {"schedule"}
    assert [links.is_reached(at_s) for at_s in (0.0, 0.04, 10.0)] == [True, True, False]
    assert deployment.num_restarts == 1
    assert deployment.directions["w1", "s0"].rate_bps == 10e6, "what the kernel is given is real"
    assert events[-1].rate_bps == 20e6, "what people are shown is virtual"


def test_how_far_the_links_fall_behind_a_trace_is_known() -> None:
    """Each of ten steps takes half as long again as the time from one to the next."""
    deployment = network(workload="synthetic", dilation=2)
    deployment.change_s = 0.03
    steps = [
        LinkChange(
            at_s=0.01 * number,
            link="w0->s0",
            settings=parse_override({"rate": f"{10 + number}mbit"}),
            source="trace",
            key="changes.0",
        )
        for number in range(10)
    ]
    links, events = accepted(deployment)
    begun_s = time.monotonic()
    links.begin(iter(steps))
    while len(events) < len(steps) and time.monotonic() < begun_s + 10:
        time.sleep(0.005)
    links.close()
    virtual_s = (time.monotonic() - begun_s) / 2
    assert len(events) == len(steps)
    assert len(steps) * 0.03 / 2 - 0.09 <= links.late_s <= virtual_s - 0.09


def test_changes_that_are_due_and_not_made_are_late_and_reached() -> None:
    """The first takes longer than what is left of the run, so that the second is not even begun."""
    changes = [{"at": f"{at_s}s", "link": "w0->s0", "rate": f"{10 + at_s:g}mbit"} for at_s in (0, 0.1, 100)]
    deployment = network(changes=changes)
    deployment.change_s = 0.5
    links, events = accepted(deployment)
    assert not links.is_reached(0.0), "nothing has begun"
    links.begin(timeline(deployment.planned.experiment.changes))
    threading.Event().wait(0.3)
    assert events == []
    assert 0.25 < links.late_s < 10
    links.forget_late()
    assert links.late_s > 0.25, "it still is not made"
    links.close()
    links.check()
    assert [links.is_reached(at_s) for at_s in (0.0, 0.1, 100.0)] == [True, True, False]
    assert len({event.at_s for event in events}) == 1


def test_a_change_to_come_is_not_late() -> None:
    deployment = network(changes=[{"at": "100s", "link": "w1-s0", "rate": "20mbit"}])
    links, _ = accepted(deployment)
    links.begin(timeline(deployment.planned.experiment.changes))
    threading.Event().wait(0.05)
    assert links.late_s == 0.0
    links.close()


def test_a_change_that_does_not_take_ends_the_run_whoever_made_it() -> None:
    deployment = network(changes=[{"at": "0s", "link": "w1-s0", "rate": "20mbit"}])
    deployment.error = MissingRequirementError("the kernel says no")
    links, _ = accepted(deployment)
    with pytest.raises(MissingRequirementError):
        links.change(manual_change("w1-s0", rate="50mbit"))
    with pytest.raises(MissingRequirementError, match="says no"):
        links.check()


def test_closing_ends_a_trace_without_end() -> None:
    def endless() -> Iterator[LinkChange]:
        for number in count():
            settings = parse_override({"rate": f"{10 + number % 2}mbit"})
            yield LinkChange(at_s=number * 1e-3, link="w0-s0", settings=settings, source="trace", key="changes.0")

    links, events = accepted(network())
    links.begin(endless())
    deadline_s = time.monotonic() + 10
    while not events:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    links.close()
    seen = len(events)
    threading.Event().wait(0.02)
    assert len(events) == seen
