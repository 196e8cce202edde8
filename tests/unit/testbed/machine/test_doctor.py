"""What a plan asks of this machine's kernel is said before anything is made, with the key that asks and a fix."""

import os
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.experiment.experiment import validate
from testbed.machine import doctor
from testbed.machine.budget import UnknownBudgetError, keep
from testbed.machine.doctor import plan_in_theory, plan_to_run
from tests.facts import BUDGET
from transports.errors import UnsupportedError

QUICK = {"name": "t", "channel": {"kind": "tcp", "congestion": "quick"}}


def test_a_congestion_control_that_the_kernel_has_not_is_refused_when_planning() -> None:
    with pytest.raises(
        MissingRequirementError, match=r"channel\.congestion: this kernel has no quick .*modprobe tcp_quick"
    ):
        doctor.plan_here(validate(QUICK))


def test_so_is_that_of_one_stack_among_several() -> None:
    workload = {"kind": "allreduce", "stacks": ["ring/tcp", "ring/tcp:congestion=quick"]}
    with pytest.raises(MissingRequirementError, match=r"workload\.stacks: tcp:congestion: this kernel has no quick"):
        doctor.plan_here(validate({"name": "t", "workload": workload}))


def test_a_module_that_the_kernel_would_load_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = f"/lib/modules/{os.uname().release}/modules.dep"
    reading, existing = Path.read_text, Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == modules or existing(path))
    listed = "kernel/net/ipv4/tcp_quick.ko.zst: kernel/net/ipv4/tcp_other.ko.zst\n"
    monkeypatch.setattr(
        Path, "read_text", lambda path, *a, **k: listed if str(path) == modules else reading(path, *a, **k)
    )
    assert doctor.plan_here(validate(QUICK)).congestion == "quick"


def test_a_kernel_that_does_not_say_is_queried_when_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "congestion_controls", list)
    assert doctor.plan_here(validate(QUICK)).congestion == "quick"


@pytest.mark.parametrize(
    "keys", [{"channel": "mptcp"}, {"workload": {"kind": "allreduce", "stacks": ["ring/tcp", "ring/mptcp"]}}]
)
def test_a_kernel_without_multipath_tcp_is_reported_when_planning(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnsupportedError("this kernel has no Multipath TCP: sysctl net.mptcp.enabled=1")

    monkeypatch.setattr("transports.channels.mptcp.require_mptcp", refuse)
    with pytest.raises(MissingRequirementError, match=r"channel: .*net\.mptcp\.enabled=1"):
        doctor.plan_here(validate({"name": "t", **keys}))


def test_what_only_root_can_measure_is_the_error_that_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    said: list[str] = []
    workload = {"kind": "synthetic", "layers": "resnet50", "forward": "63ms", "backward": "65ms"}
    experiment = validate({"name": "t", "dilation": "auto", "link": {"rate": "100gbit"}, "workload": workload})
    with pytest.raises(UnknownBudgetError, match="sudo testbed doctor"):
        plan_to_run(experiment, say=said.append)
    assert said == []
    keep(BUDGET)
    assert plan_to_run(experiment, say=said.append).clock.dilation > 1
    assert said == []


@pytest.mark.parametrize(
    ("works", "dilation", "backend"),
    [(("netem", "nfqueue"), 1, "netem"), (("nfqueue",), 20, "nfqueue"), (("tap",), 20, "tap"), ((), 1, "netem")],
)
def test_auto_waits_until_a_backend_that_is_here_makes_the_delays(
    monkeypatch: pytest.MonkeyPatch, works: tuple[str, ...], dilation: float, backend: str
) -> None:
    """The run was refused for netem, which is not here, where slower time would have done."""
    monkeypatch.setattr(doctor, "missing_for_backend", lambda name: "" if name in works else "it is not here")
    monkeypatch.setattr("testbed.machine.budget.known_budget", lambda: BUDGET)
    keys = {"link": {"rate": "100mbit", "delay": "10us"}, "workload": "synthetic", "dilation": "auto"}
    plan = plan_in_theory(validate({"name": "t", "workers": 2, **keys}))
    assert (plan.clock.dilation, plan.delay_backend) == (dilation, backend)
