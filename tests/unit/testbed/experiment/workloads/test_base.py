"""What a spec says and nobody would read is refused, with the key and what to do; what is read is not."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan

BENCH = {"kind": "allreduce", "sizes": ["64KiB"], "stacks": ["ring/tcp"]}
COMMAND: dict[str, Any] = {"kind": "command", "argv": ["true"]}


def failure(**spec: Any) -> str:
    with pytest.raises(SpecError) as caught:
        make_plan(validate({"name": "x", **spec}))
    return str(caught.value)


@pytest.mark.parametrize("option", [{"streams": 2}, {"send_buffer": "1MiB"}, {"zero_copy": True}])
def test_a_stack_opens_its_own_connections(option: dict[str, Any]) -> None:
    (name,) = option
    assert f"channel.{name}: stack gloo opens its own" in failure(stack="gloo", channel={"kind": "tcp", **option})


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"collective": "tree"}, "collective"),
        ({"channel": {"kind": "tcp", "streams": 2}}, "channel"),
        ({"channel": "udp"}, "channel"),
        ({"stack": "gloo"}, "stack"),
        ({"fusion": "layers"}, "fusion"),
        ({"hosts": {"w1": {"slowdown": {"kind": "constant", "factor": 2}}}}, "hosts.w1.slowdown"),
    ],
)
def test_the_all_reduce_workload_says_everything_in_its_stacks(spec: dict[str, Any], key: str) -> None:
    assert failure(workload=BENCH, **spec).startswith(f"{key}: workload allreduce ")


@pytest.mark.parametrize(
    ("spec", "key"),
    [({"collective": "tree"}, "collective"), ({"channel": "udp"}, "channel"), ({"compression": "fp16"}, "compression")],
)
def test_a_command_without_our_backend_reads_none_of_its_options(spec: dict[str, Any], key: str) -> None:
    assert f"{key}: nothing reads it" in failure(workload=COMMAND, **spec)
    make_plan(validate({"name": "x", "workload": {**COMMAND, "backend": "testbed"}, **spec}))


def test_congestion_control_is_the_routes_and_so_everybodys() -> None:
    channel = {"kind": "tcp", "congestion": "reno"}
    for spec in ({"workload": BENCH}, {"workload": COMMAND}, {"stack": "gloo"}):
        assert make_plan(validate({"name": "x", "channel": channel, **spec})).congestion == "reno"
