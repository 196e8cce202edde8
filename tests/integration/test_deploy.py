"""Nodes and links as the deployment makes them: Mininet's in every respect, quick to come and gone without a trace."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.deployment.deployment import deploy
from testbed.deployment.mininet_nodes import EmulatedNetwork
from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.netem import Netem
from testbed.experiment.experiment import validate
from testbed.experiment.link import LinkSpec
from testbed.hosts.base import ProcessSpec
from testbed.plan.plan import make_plan
from testbed.system.kernel import network_namespace
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RunState, new_run_id

pytestmark = pytest.mark.privileged


@contextmanager
def owned(tmp_path: Path) -> Iterator[RunState]:
    state = RunState.create(new_run_id(), root=tmp_path)
    yield state
    assert processes_of_run(state.run_id) == []
    state.remove()


@contextmanager
def network(tmp_path: Path, **keys: Any) -> Iterator[EmulatedNetwork]:
    with owned(tmp_path) as state:
        made = EmulatedNetwork(make_plan(validate({"name": "t", "workers": 2, **keys})), state, holders={})
        try:
            made.build()
            made.start()
            yield made
        finally:
            made.stop()


def test_a_node_has_mininets_shell_once_it_is_used(tmp_path: Path) -> None:
    with network(tmp_path) as net:
        node = net.get("w0")
        assert node.shell is None
        assert node.cmd("readlink /proc/self/ns/net").strip() == f"net:[{network_namespace(node.pid)}]"
        assert node.shell is not None
        assert node.cmd("echo again").strip() == "again"
        assert "w0-eth0" in node.cmd("ls /sys/class/net")
        output, _ = node.popen(["cat", "/proc/net/dev"]).communicate()
        assert b"w0-eth0" in output


def test_nodes_and_links_are_there_when_build_returns(tmp_path: Path) -> None:
    with network(tmp_path, workers=4, topology="dumbbell") as net:
        namespaces = {network_namespace(node.pid) for node in net.values()}
        assert len(namespaces) == 6
        assert network_namespace(os.getpid()) not in namespaces
        for first, second in net.plan.links:
            for port in (first, second):
                argv = ["nsenter", f"--net=/proc/{net.get(port.node).pid}/ns/net", "ip", "link", "show", port.interface]
                assert port.mac in subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def inside(pid: int, script: str, *, user: int = 0) -> list[str]:
    argv = [
        "nsenter",
        f"--target={pid}",
        "--net",
        "--mount",
        "--uts",
        "--",
        "setpriv",
        f"--reuid={user}",
        "--clear-groups",
    ]
    done = subprocess.run([*argv, "sh", "-c", script], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()


def test_every_host_is_called_by_its_name_and_knows_all_others(tmp_path: Path) -> None:
    machine = Path("/etc/hosts").read_text(), socket.gethostname()
    keys = {"collective": {"kind": "parameter_server", "servers": 1}, "hosts": {"x0": {"at": "s0"}}}
    plan = make_plan(validate({"name": "t", "workers": 2, "seed": 7, **keys}))
    with owned(tmp_path) as state, deploy(plan, state, log_directory=tmp_path) as deployment:
        names = plan.host_names()
        assert list(names) == ["w0", "w1", "ps0", "x0"]
        for name in names:
            script = f"hostname; getent hosts {' '.join(names)} {' '.join(names.values())} | tr -s ' '"
            pairs = [f"{address} {each}" for each, address in names.items()]
            assert inside(deployment.hosts[name].pid, script, user=65534) == [name, *pairs, *pairs]
        begun_s = time.monotonic()
        assert inside(deployment.hosts["w1"].pid, "getent hosts nobody.invalid || echo unknown") == ["unknown"]
        assert time.monotonic() - begun_s < 3.0, "a name server that nobody can reach was waited for"
        tail = inside(deployment.hosts["w0"].pid, "cat /etc/hosts")
        assert tail[-len(machine[0].splitlines()) :] == machine[0].splitlines()
        assert "Read-only" in inside(deployment.hosts["w0"].pid, "echo >> /etc/hosts")[-1]
        assert (Path("/etc/hosts").read_text(), socket.gethostname()) == machine


def test_a_host_that_has_lost_its_name_or_its_peers_names_is_noticed(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "t", "workers": 2}))
    with owned(tmp_path) as state, deploy(plan, state, log_directory=tmp_path) as deployment:
        assert deployment.differences() == []
        inside(deployment.hosts["w1"].pid, "hostname elsewhere; umount /etc/hosts")
        assert deployment.differences() == [
            "w1: is called elsewhere, requested w1",
            "w1: w0 is nobody in /etc/hosts, requested 10.0.0.2",
            "w1: w1 is nobody in /etc/hosts, requested 10.0.0.6",
        ]


def test_without_namespaces_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "mnexec"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'unshare failed: No space left on device'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with (
        pytest.raises(MissingRequirementError, match="no namespaces for w0: unshare failed: No space left"),
        owned(tmp_path / "run") as state,
        deploy(make_plan(validate({"name": "t", "workers": 2})), state, log_directory=tmp_path),
    ):
        raise AssertionError("deployed without namespaces")


def test_all_processes_of_all_nodes_are_ordered_to_end_at_once(tmp_path: Path) -> None:
    with owned(tmp_path) as state:
        plan = make_plan(validate({"name": "t", "workers": 2}))
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            processes = [
                host.start(ProcessSpec(name=f"{name}-sleep", argv=("sleep", "600")))
                for name, host in deployment.hosts.items()
            ]
        assert [process.poll() for process in processes] == [-15] * 3


def test_where_filters_send_what_arrives_is_read_back(tmp_path: Path) -> None:
    stage = Netem().stage(LinkSpec.model_validate({"delay": "1ms"}), interface="w0-eth0", index=0, seed=1)
    with owned(tmp_path) as state:
        plan = make_plan(validate({"name": "t", "workers": 2}))
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            host = deployment.hosts["w0"]
            for command in stage.ip_commands():
                host.execute(["ip", *command.split()])
            for command in stage.tc_commands()[:-1]:  # not every kernel has what the last one asks for
                host.execute(["tc", *command.split()])
            assert deployment.read_back()["w0"]["redirects"] == {"w0-eth0": ["ifb0"]}
