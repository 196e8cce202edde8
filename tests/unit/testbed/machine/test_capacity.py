from testbed.experiment.experiment import validate
from testbed.machine.capacity import ring_flows
from testbed.plan.plan import make_plan


def test_the_ring_of_flows_closes() -> None:
    flows = ring_flows(make_plan(validate({"name": "t", "workers": 4})))
    assert [(flow.source, flow.target) for flow in flows] == [("w0", "w1"), ("w1", "w2"), ("w2", "w3"), ("w3", "w0")]
