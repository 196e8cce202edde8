import os
import sys

from testbed.experiment.experiment import validate
from testbed.hosts.base import runtime_driver
from testbed.plan.plan import make_plan


def missing(program: str) -> list[str]:
    plan = make_plan(validate({"name": "a", "workers": 2, "workload": {"kind": "command", "argv": [program]}}))
    return runtime_driver(plan).missing()


def test_a_program_that_is_not_there_is_refused_before_anything_is_made() -> None:
    assert missing(sys.executable) == []
    assert missing("no-such-program") == [
        "workload.argv: there is no program 'no-such-program': install it, or give its path"
    ]


def test_programs_inherit_what_the_controller_was_started_with() -> None:
    assert validate({"name": "a"}).runtime.inherited() == os.environ
