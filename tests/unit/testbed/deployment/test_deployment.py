"""What a deployment does with one direction, without a kernel; tests/integration/test_live_links.py has one."""

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.deployment import mininet_nodes
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.base import DelayStage
from testbed.experiment.experiment import validate
from testbed.experiment.link import parse_override
from testbed.links.htb import Shaper
from testbed.plan.addressing import Port
from testbed.plan.direction import Direction
from testbed.plan.link_configuration import changed_links
from testbed.plan.plan import Plan, make_plan
from testbed.system.run_state import RunState, new_run_id


def planned(backend: str) -> Plan:
    return make_plan(
        validate({"name": "t", "workers": 2, "link": {"delay": "40ms", "backend": backend}}),
        works=lambda name: name == backend,
    )


def changed(plan: Plan, **settings: str) -> Direction:
    """The direction from w1 to s0 with these settings."""
    (requested,) = (
        each
        for each in changed_links(
            list(plan.requested.values()),
            "w1->s0",
            parse_override(settings),
            "changes.0",
            packet_bytes=plan.experiment.packet_bytes,
        )
        if each.hop == ("w1", "s0")
    )
    return plan.changed(next(each for each in plan.directions if each.hop == requested.hop), requested)


class Ordered(Deployment):
    """Notes what is changed, and which rate is said to be in force then."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, {}, counters_directory=Path(), scratch_directory=Path())
        self.order: list[tuple[str, float]] = []

    def _change_shaper(self, port: Port, shaper: Shaper) -> None:
        self.order.append((f"shaper of {port.node}: {shaper.rate_bps:g}", self.directions["w1", "s0"].rate_bps))

    def _change_stage(self, direction: Direction, before: DelayStage, stage: DelayStage) -> None:
        assert stage != before
        self.order.append((f"stage of {direction.receiver.node}", self.directions["w1", "s0"].rate_bps))


def test_a_rate_is_in_force_and_known_at_the_same_moment_however_long_the_delay_takes() -> None:
    """A sample between the two would have bytes of the one rate and say the other: a higher one is impossible then."""
    plan = planned("netem")
    deployment = Ordered(plan)
    deployment.change(changed(plan, rate="200mbit", delay="5ms"), down=False)
    assert deployment.order == [("stage of s0", 100e6), ("shaper of w1: 2e+08", 100e6)]
    assert deployment.directions["w1", "s0"].rate_bps == 200e6


class Network:
    """Of Mininet's, without namespaces."""

    def __init__(self, stopped: list[str]) -> None:
        self._stopped = stopped

    def build(self) -> None:
        pass

    def start(self) -> None:
        pass

    def get(self, name: str) -> SimpleNamespace:
        del name
        return SimpleNamespace(pid=1)

    def stop(self) -> None:
        self._stopped.append("network")


class Host:
    """In which nothing can be set, and of which the first cannot be stopped either."""

    def __init__(self, name: str, stopped: list[str]) -> None:
        self._name = name
        self._stopped = stopped

    def entered(self) -> AbstractContextManager[None]:
        raise MissingRequirementError(f"{self._name} cannot be entered")

    def tell_to_end(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped.append(self._name)
        if self._name == "w0":
            raise OSError("its control group is busy")


def test_a_host_that_cannot_be_stopped_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(mininet_nodes, "EmulatedNetwork", lambda *_: Network(stopped))
    runtime: Any = SimpleNamespace(holders={}, host=lambda name, _: Host(name, stopped))
    state = RunState.create(new_run_id(), root=tmp_path)
    with (
        pytest.raises(OSError, match="busy") as raised,
        deploy(planned("netem"), state, log_directory=tmp_path, runtime=runtime),
    ):
        pass
    assert isinstance(raised.value.__context__, MissingRequirementError)
    assert stopped == ["w0", "w1", "s0", "network"]
