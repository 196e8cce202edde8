from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.plan.plan import make_plan


def spec(**changes: Any) -> Experiment:
    return validate({"name": "a", "workers": 2, "workload": {"kind": "command", "argv": ["true"]}, **changes})


def test_a_command_is_planned_like_any_workload_and_expects_no_bytes() -> None:
    plan = make_plan(spec())
    assert plan.buckets == ()
    assert not plan.experiment.workload.sends_only_gradients()
    assert plan.experiment.workload.judged_by_links_alone()
    assert validate(plan.experiment.dump()) == plan.experiment


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stack": "gloo"}, r"^stack: .*workload\.backend"),
        ({"fusion": "layers"}, "^fusion: "),
        ({"collective": "parameter_server"}, "^collective: .*co_located"),
        ({"hosts": {"w0": {"slowdown": 2}}}, r"^hosts\.w0\.slowdown: .*`cpu`"),
        (
            {"compression": "powersgd", "workload": {"kind": "command", "argv": ["true"], "backend": "testbed"}},
            "^compression: powersgd: .*ddp_hook",
        ),
    ],
)
def test_what_only_our_own_workers_do_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make_plan(spec(**changes))


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({}, r"workload\.argv: required"),
        ({"argv": []}, r"workload\.argv: "),
        ({"argv": [""]}, r"workload\.argv: a command begins"),
        ({"argv": "python a.py"}, r"workload\.argv: write a list"),
        ({"argv": ["true"], "backend": "nccl"}, r"workload\.backend: .*testbed"),
        ({"argv": ["true"], "master_port": 0}, r"workload\.master_port: "),
        ({"argv": ["true"], "grace": "-1s"}, r"workload\.grace"),
    ],
)
def test_bad_values_are_named(workload: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        spec(workload={"kind": "command", **workload})
