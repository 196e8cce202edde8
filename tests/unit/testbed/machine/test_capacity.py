import os
import subprocess
import sys

from testbed.experiment.experiment import validate
from testbed.machine.capacity import busy_share, ring_flows
from testbed.plan.plan import make_plan


def test_the_ring_of_flows_closes() -> None:
    flows = ring_flows(make_plan(validate({"name": "t", "workers": 4})))
    assert [(flow.source, flow.target) for flow in flows] == [("w0", "w1"), ("w1", "w2"), ("w2", "w3"), ("w3", "w0")]


def test_a_busy_core_is_seen() -> None:
    program = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            share = busy_share()
        finally:
            busy.kill()
    assert share > 0.8 / (os.cpu_count() or 1)
