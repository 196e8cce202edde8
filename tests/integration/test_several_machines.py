"""Links between two machines, which two namespaces play: what they carry, what is counted, what is left."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.calibrate import delays_of, rate_of
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.experiment import validate
from testbed.experiment.machines import Machines
from testbed.hosts.machines import RunningMachines, running_machines, spawned_in_namespaces
from testbed.links.vxlan import OVERHEAD_BYTES
from testbed.plan.machines import spread_over
from testbed.plan.plan import Plan, make_plan
from testbed.system.kernel import network_namespace
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RunState, new_run_id
from testbed.verdict.underlay import underlay_facts, underlay_shortcomings
from tests.bystanders import wait_until
from tests.rack import run
from tests.underlay import Underlay

pytestmark = pytest.mark.privileged


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    with ExitStack() as stack:
        yield Underlay(stack, tmp_path)


def plan_over(underlay: Underlay, **keys: Any) -> Plan:
    """Two workers at a switch, the second one on the second machine."""
    made = make_plan(validate({"name": "t", "workers": 2, "link": {"rate": "100mbit"}, **keys}))
    return spread_over(made, Machines.model_validate(underlay.data(["w0", "s0"], ["w1"])))


@contextmanager
def machines_of(plan: Plan, tmp_path: Path) -> Iterator[tuple[RunningMachines, RunState]]:
    state = RunState.create(new_run_id(), root=tmp_path / "run")
    try:
        with running_machines(plan, state, spawned_in_namespaces(state, tmp_path)) as machines:
            yield machines, state
    finally:
        wait_until(lambda: processes_of_run(state.run_id) == [], "its processes end")
        state.remove()


@contextmanager
def deployed(plan: Plan, tmp_path: Path) -> Iterator[Deployment]:
    with (
        machines_of(plan, tmp_path) as (machines, state),
        deploy(plan, state, log_directory=tmp_path, machines=machines) as deployment,
    ):
        yield deployment


def class_bytes(deployment: Deployment) -> dict[tuple[str, str], int]:
    return {hop: line.num_bytes for hop, line in deployment.line_counters().items()}


def test_a_link_between_machines_has_its_rate_and_counts_inner_frames(underlay: Underlay, tmp_path: Path) -> None:
    plan = plan_over(underlay)
    with deployed(plan, tmp_path) as deployment:
        assert deployment.differences() == []
        namespaces = {name: network_namespace(host.pid) for name, host in deployment.hosts.items()}
        assert len(set(namespaces.values())) == 3
        before, wire_before = class_bytes(deployment), underlay.sent_bytes(1)
        # 1000 packets of 1028 bytes, frames of 1042.
        script = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
            f"[s.sendto(bytes(1000), ('{plan.port_of('w0').address}', 9)) for _ in range(1000)]"
        )
        deployment.hosts["w1"].execute(["python3", "-c", script])
        inner = 1000 * 1042
        wait_until(lambda: class_bytes(deployment)["w1", "s0"] - before["w1", "s0"] >= inner, "all arrives")
        assert class_bytes(deployment)["w1", "s0"] - before["w1", "s0"] == inner
        wait_until(lambda: underlay.sent_bytes(1) - wire_before >= 1000 * (1042 + OVERHEAD_BYTES), "all is sent")
        assert underlay.sent_bytes(1) - wire_before == pytest.approx(1000 * (1042 + OVERHEAD_BYTES), abs=1000)
        assert class_bytes(deployment)["s0", "w0"] - before["s0", "w0"] == inner
        for direction in plan.directions:
            assert rate_of(deployment, direction).rate_bps == pytest.approx(direction.rate_bps, rel=0.01)
    wait_until(lambda: underlay.sockets() == [], "the kernel closes the sockets of links")


def test_delays_are_made_behind_a_link_between_machines(underlay: Underlay, tmp_path: Path) -> None:
    plan = plan_over(underlay, link={"rate": "100mbit", "delay": "3ms", "backend": "nfqueue"})
    with deployed(plan, tmp_path) as deployment:
        for direction, measured in zip(plan.directions, delays_of(deployment, plan.directions), strict=True):
            assert measured.delay_s == pytest.approx(direction.delay_s, rel=0.15)


def test_a_changed_end_is_a_difference(underlay: Underlay, tmp_path: Path) -> None:
    with deployed(plan_over(underlay), tmp_path) as deployment:
        run(deployment.hosts["w1"].pid, "ip link set dev w1-eth0 type vxlan ttl 5")
        assert deployment.differences() == ["w1-eth0: vxlan ttl is 5, requested 64"]


def test_what_the_network_between_does_is_measured(underlay: Underlay, tmp_path: Path) -> None:
    plan = plan_over(underlay)
    with machines_of(plan, tmp_path) as (machines, _):
        there, back = machines.measure()
        assert (there.source, there.target, back.source, back.target) == ("m0", "m1", "m1", "m0")
        assert there.path_mtu == back.path_mtu == 1600
        assert plan.spread is not None
        for measured, need in zip((there, back), plan.spread.needs, strict=True):
            assert need.wire_bps < measured.carried_bps < 1.15 * need.wire_bps
        assert 0 < there.round_trip_s < 0.05
        underlay.slow_down("40mbit")
        for measured in machines.measure():
            assert measured.carried_bps == pytest.approx(40e6, rel=0.01)


def test_a_network_that_is_gone_after_a_run_carries_nothing(underlay: Underlay, tmp_path: Path) -> None:
    """So that the run is invalid, not one that this machine cannot run."""
    plan = plan_over(underlay)
    assert plan.spread is not None
    with machines_of(plan, tmp_path) as (machines, _):
        before = machines.measure()
        run(underlay.pids[1], "ip link set dev u down")
        after = machines.measure()
    assert [(each.carried_bps, each.path_mtu) for each in after] == [(0.0, 0)] * 2
    said = underlay_shortcomings(underlay_facts(plan.spread, [before, after]))
    assert sum("let nothing through" in each for each in said) == sum("carried 0" in each for each in said) == 2


def test_a_path_that_is_narrower_than_its_ends_is_found(underlay: Underlay, tmp_path: Path) -> None:
    with machines_of(plan_over(underlay), tmp_path) as (machines, _):
        # What arrives longer than that is dropped, and nobody says so.
        enter = ["nsenter", f"--net=/proc/{underlay.pids[1]}/ns/net", "tc"]
        subprocess.run([*enter, "qdisc", "add", "dev", "u", "ingress"], check=True)
        filtering = [*enter, "filter", "add", "dev", "u", "ingress", "protocol", "ip", "bpf", "direct-action"]
        subprocess.run([*filtering, "bytecode", "4,128 0 0 0,37 0 1 1570,6 0 0 2,6 0 0 4294967295"], check=True)
        there, back = machines.measure()
        assert (there.path_mtu, back.path_mtu) == (1556, 1600)


def test_packets_too_long_for_the_network_between_are_refused_with_the_fix(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plan = plan_over(Underlay(stack, tmp_path, mtu=1500))
        with (
            pytest.raises(
                MissingRequirementError, match=r"m0 to m1 lets packets of 1500 .* mtu 1500 need 1550 .*raise"
            ),
            machines_of(plan, tmp_path),
        ):
            raise AssertionError("links were made that cut packets up")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"namespace": "/nowhere"}, r"machines\.m1\.namespace: there is no /nowhere"),
        ({"namespace": None}, r"machines\.m1\.namespace: without it only Ray"),
        ({"address": "10.99.0.9"}, r"machines\.m1\.address: .*10\.99\.0\.9 is no address of this machine"),
    ],
)
def test_a_machine_that_cannot_be_had_is_refused(
    underlay: Underlay, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    plan = plan_over(underlay)
    assert plan.spread is not None
    first, second = plan.spread.machines
    wrong = replace(plan, spread=replace(plan.spread, machines=(first, replace(second, **change))))
    with pytest.raises(MissingRequirementError, match=said), machines_of(wrong, tmp_path):
        raise AssertionError("it was had")


def test_one_namespace_is_not_two_machines(underlay: Underlay, tmp_path: Path) -> None:
    plan = plan_over(underlay)
    assert plan.spread is not None
    first, second = plan.spread.machines
    both = (first, replace(second, namespace=first.namespace))
    with (
        pytest.raises(MissingRequirementError, match="the machines are one network namespace"),
        machines_of(replace(plan, spread=replace(plan.spread, machines=both)), tmp_path),
    ):
        raise AssertionError("one was taken for two")


def test_a_killed_agent_ends_the_run_and_leaves_nothing(underlay: Underlay, tmp_path: Path) -> None:
    with deployed(plan_over(underlay), tmp_path) as deployment:
        assert deployment.machines is not None
        deployment.check()
        os.kill(deployment.machines.processes["machine m1"], signal.SIGKILL)
        wait_until(lambda: not _lives(deployment.holders["w1"]), "its node ends with it")
        with pytest.raises(RunFailedError, match=r"the agent of machine m1 \(pid \d+\) has ended, .*\(w1\)"):
            deployment.check()
    wait_until(lambda: underlay.sockets() == [], "the kernel closes the sockets of links")


def _lives(pid: int) -> bool:
    return network_namespace(pid) is not None


def test_an_agent_killed_during_a_check_is_named_before_what_it_took_along(
    underlay: Underlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployed(plan_over(underlay), tmp_path) as deployment:
        assert deployment.machines is not None
        (agent,) = (pid for name, pid in deployment.machines.processes.items() if name == "machine m1")
        deployment.check()

        def killed_while_looking(pid: int) -> int | None:
            if pid == deployment.holders["w1"]:
                os.kill(agent, signal.SIGKILL)
                wait_until(lambda: network_namespace(pid) is None, "the agent takes the holder along")
            return network_namespace(pid)

        monkeypatch.setattr("testbed.deployment.deployment.network_namespace", killed_while_looking)
        with pytest.raises(RunFailedError, match=rf"the agent of machine m1 \(pid {agent}\) has ended.*\(w1\)"):
            deployment.check()


def test_two_runs_at_once_have_links_of_their_own(underlay: Underlay, tmp_path: Path) -> None:
    plan = plan_over(underlay)
    with deployed(plan, tmp_path / "a") as first, deployed(plan, tmp_path / "b") as second:
        for deployment in (first, second):
            target = plan.port_of("w0").address
            script = f"import socket; socket.create_connection(('{target}', 1))"
            done = subprocess.run(
                ["nsenter", f"--net=/proc/{deployment.hosts['w1'].pid}/ns/net", "python3", "-c", script],
                capture_output=True,
                text=True,
                check=False,
            )
            assert "Connection refused" in done.stderr  # it has got there, where nobody listens
