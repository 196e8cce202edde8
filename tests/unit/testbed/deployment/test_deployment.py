"""What a deployment does with one direction, without a kernel; tests/integration/test_live_links.py has one."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.deployment import mininet_nodes
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.base import DelayStage
from testbed.experiment.delay_backends.netem import NetemStage
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
        validate({"name": "t", "workers": 2, "link": {"delay": "40ms", "backend": backend}, "packet_mode": "mtu"}),
        works=lambda name: name == backend,
    )


def changed(deployment: Deployment, **settings: str) -> Direction:
    """The direction from w1 to s0 with these settings, the others as the spec has them."""
    plan = deployment.planned
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
    return plan.changed(deployment.directions[requested.hop], requested)


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
    deployment = Ordered(planned("netem"))
    deployment.change(changed(deployment, rate="200mbit", delay="5ms"), down=False)
    assert deployment.order == [("stage of s0", 100e6), ("shaper of w1: 2e+08", 100e6)]
    assert deployment.directions["w1", "s0"].rate_bps == 200e6


class Tc:
    """A node whose `tc` takes changes of one netem and prints them as iproute2 6.6 does; `deaf` where they go nowhere,
    older where it knows no seed."""

    def __init__(self, stage: NetemStage, *, knows_seeds: bool = True, deaf: bool = False) -> None:
        self._stage = stage
        self._knows_seeds = knows_seeds
        self._deaf = deaf
        self._options: dict[str, Any] = {}
        self.redirected_to = stage.device
        self.num_processes = 0

    def execute(self, argv: Sequence[str], *, stdin: str = "") -> str:
        assert argv == ["tc", "-j", "-d", "-batch", "-"]
        self.num_processes += 1
        return "\n".join(filter(None, map(self._answer, stdin.splitlines())))

    def _answer(self, line: str) -> str:
        if line == "qdisc show":
            netem = {"kind": "netem", "dev": self._stage.device, "root": True, "options": self._options}
            return json.dumps([{"kind": "noqueue", "dev": "lo", "root": True}, netem])
        if line == f"filter show dev {self._stage.interface} ingress":
            mirred = {"kind": "mirred", "mirred_action": "redirect", "to_dev": self.redirected_to}
            return json.dumps([{"options": {"match": {"mask": "0"}, "actions": [mirred]}}])
        words = line.split()
        assert words[:4] == ["qdisc", "change", "dev", self._stage.device]
        after = dict(pairwise(words))
        if "seed" in after and not self._knows_seeds:
            raise MissingRequirementError('What is "seed"?')
        if not self._deaf:
            self._options = {
                "limit": int(after["limit"]),
                "delay": {"delay": float(after["delay"].removesuffix("us")) * 1e-6, "jitter": 0},
                "loss-random": {"loss": float(after.get("random", "0%").removesuffix("%")) / 100},
                **({"seed": int(after["seed"])} if "seed" in after else {}),
            }
        return ""


def with_tc(**keys: bool) -> tuple[Deployment, Tc]:
    plan = planned("netem")
    (stage,) = (each.delay_stage for each in plan.directions if each.hop == ("w1", "s0"))
    assert isinstance(stage, NetemStage)
    hosts: dict[str, Any] = {"s0": (tc := Tc(stage, **keys))}
    return Deployment(plan, hosts, counters_directory=Path(), scratch_directory=Path()), tc


def test_a_step_of_netem_is_one_process_with_its_seed_and_its_read_back() -> None:
    """Ten steps a second of several links leave no time for more."""
    deployment, tc = with_tc()
    deployment.change(changed(deployment, delay="5ms", loss="1%"), down=False)
    assert tc.num_processes == 1
    deployment.change(changed(deployment, delay="6ms", loss="1%"), down=False)
    assert tc.num_processes == 2


def test_where_seeds_are_not_known_that_is_found_once() -> None:
    deployment, tc = with_tc(knows_seeds=False)
    deployment.change(changed(deployment, delay="5ms", loss="1%"), down=False)
    assert tc.num_processes == 2
    deployment.change(changed(deployment, delay="6ms", loss="1%"), down=False)
    assert tc.num_processes == 3


def test_a_step_that_the_kernel_does_not_take_ends_the_run() -> None:
    deployment, _ = with_tc(deaf=True)
    with pytest.raises(MissingRequirementError, match=r"did not take a change: .*delay is 0\.0, requested 0\.005"):
        deployment.change(changed(deployment, delay="5ms"), down=False)


def test_a_step_of_a_delay_line_that_packets_no_longer_pass_ends_the_run() -> None:
    deployment, tc = with_tc()
    tc.redirected_to = "lo"
    with pytest.raises(MissingRequirementError, match=r"what arrives goes to \['lo'\]"):
        deployment.change(changed(deployment, delay="5ms"), down=False)


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
