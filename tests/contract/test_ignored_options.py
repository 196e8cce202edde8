"""What a spec says has an effect, or is refused: each key with each kind of workload, each option of each value."""

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pydantic import BaseModel

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.plan.plan import make_plan
from testbed.runner.user_command import worker_environment
from tests.axes import AXES

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("testbed", "transports", "switch_agg")
COMMAND: Final = {"kind": "command", "argv": ["true"]}
BASES: Final[dict[str, dict[str, Any]]] = {
    "training": {},
    "paced": {"workload": {"kind": "training", "pace": {"forward": "40ms", "backward": "80ms"}}},
    "replay": {"workload": {"kind": "replay", "trace": "resnet50"}},
    "synthetic": {"workload": {"kind": "synthetic", "layers": ["1MiB", "1MiB"]}},
    "allreduce": {"workload": "allreduce"},
    "command": {"workload": COMMAND},
    "command of ours": {"workload": {**COMMAND, "backend": "testbed"}},
    "gloo": {"stack": "gloo"},
    "openmpi": {"stack": "openmpi"},
    "local_sgd": {"synchronisation": {"kind": "local_sgd", "every": 2}},
    "asynchronous": {
        "synchronisation": "asynchronous",
        "collective": {"kind": "parameter_server", "placement": "dedicated"},
        "fusion": "none",
    },
}
"""All kinds of workload, and what else decides who reads a spec."""
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "seed": {"seed": 2},
    "workers": {"workers": 3},
    "workers_per_host": {"workers_per_host": 2},
    "topology": {"topology": "ring"},
    "placement": {"placement": "spread", "topology": "leaf_spine"},
    "link": {"link": {"rate": "50mbit"}},
    "links": {"links": {"w1-s0": {"rate": "10mbit"}}},
    "changes": {"changes": [{"at": "1s", "link": "w1-s0", "rate": "5mbit"}]},
    "packet_mode": {"packet_mode": "mtu"},
    "mtu": {"mtu": 9000},
    "switch": {"switch": "bridged"},
    "runtime": {"runtime": "docker"},
    "collective": {"collective": "tree"},
    "channel": {"channel": "grpc"},
    "channel.streams": {"channel": {"kind": "tcp", "streams": 4}},
    "channel.congestion": {"channel": {"kind": "tcp", "congestion": "reno"}},
    "compression": {"compression": "fp16"},
    "fusion": {"fusion": {"bytes": "64KiB"}},
    "synchronisation": {"synchronisation": {"kind": "local_sgd", "every": 4}},
    "stack": {"stack": {"kind": "openmpi", "algorithm": "ring"}},
    "hosts.cpu": {"hosts": {"w1": {"cpu": 0.5}}},
    "hosts.slowdown": {"hosts": {"w1": {"slowdown": 2}}},
    "background": {"background": [{"from": "w0", "to": "w1", "kind": "constant", "rate": "1mbit"}]},
    "storage": {"storage": {"kind": "full_read", "data": "1MB"}},
    "dilation": {"dilation": 4},
    "host_cost": {"host_cost": "real"},
    "timeout": {"timeout": "20s"},
    "metrics": {"metrics": {"interval": "50ms"}},
}
READ_WHILE_RUNNING: Final = {
    "seed": ("testbed/runner/session.py", "experiment.seed"),
    "changes": ("testbed/runner/recorder.py", "experiment.changes"),
    "runtime": ("testbed/hosts/base.py", "experiment.runtime"),
    "compression": ("testbed/runner/session.py", 'spec["compression"]'),
    "channel.streams": ("testbed/runner/session.py", 'spec["channel"]'),
    "fusion": ("testbed/runner/session.py", "experiment.fusion"),
    "synchronisation": ("testbed/runner/session.py", "experiment.synchronisation"),
    "stack": ("testbed/runner/session.py", 'spec["stack"]'),
    "timeout": ("testbed/runner/session.py", "experiment.timeout_s"),
    "metrics": ("testbed/runner/run.py", "experiment.metrics.interval_s"),
}
"""What a plan does not show, because it decides nothing that is made before workers start: where it is read then."""
READ_WITH_COMMANDS: Final = {
    "seed": ("testbed/deployment/deployment.py", "experiment.seed"),  # of background traffic and of what links draw
    **{key: READ_WHILE_RUNNING[key] for key in ("changes", "runtime", "metrics")},
}


class Shown(NamedTuple):
    """All that a plan and the environment of a command show of a spec."""

    plan: str
    environment: str


def shown(spec: dict[str, Any]) -> Shown:
    plan = make_plan(validate({"name": "x", **spec}))
    whole = {key: value for key, value in plan.to_json().items() if key not in ("spec", "spec_sha256")}
    environment: dict[str, str] = {}
    if plan.experiment.workload.command is not None:
        environment = worker_environment(
            plan,
            1,
            run_id="r",
            inherited={},
            num_cores=8,
            redirected=Path("/redirected"),
            aggregation_lost=Path("/aggregation_lost"),
        )
    return Shown(json.dumps(whole, sort_keys=True, default=str), json.dumps(environment, sort_keys=True))


def refused(spec: dict[str, Any]) -> str | None:
    """Why there is no plan of it; None: there is one."""
    try:
        make_plan(validate({"name": "x", **spec}))
    except SpecError as error:
        return str(error)
    return None


@cache
def shown_unchanged(base: str, others: str) -> Shown:
    return shown({**BASES[base], **json.loads(others)})


def test_every_key_of_a_spec_is_tried() -> None:
    keys = {field.alias or name for name, field in Experiment.model_fields.items()}
    assert {change.partition(".")[0] for change in CHANGES} == keys - {"name", "workload"}


@pytest.mark.parametrize(
    ("base", "changed"),
    [(base, changed) for base in BASES for changed in CHANGES if changed.partition(".")[0] not in BASES[base]],
)
def test_each_key_shows_in_the_plan_is_read_by_workers_or_is_refused(base: str, changed: str) -> None:
    change = CHANGES[changed]
    key = changed.partition(".")[0]
    others = json.dumps({name: value for name, value in change.items() if name != key})
    spec = {**BASES[base], **change}
    if (why := refused(spec)) is not None:
        assert why.split(":")[0].split(".")[0] in {*Experiment.model_fields, "timeout"}, "the field is named"
    elif shown(spec) == shown_unchanged(base, others):
        command = base.startswith("command")
        file, text = (READ_WITH_COMMANDS if command else READ_WHILE_RUNNING)[changed]
        assert text in (ROOT / file).read_text()


@cache
def names_read() -> frozenset[str]:
    """Of every attribute that any of our modules reads."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                tree = ast.parse(path.read_text())
                found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(found)


def models() -> list[type[BaseModel]]:
    """Of every value on every axis, and of the spec itself."""
    return [Experiment, *(type_ for registry in AXES for type_ in registry)]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_option_is_read_by_some_code(model: type[BaseModel]) -> None:
    assert [name for name in model.model_fields if name != "kind" and name not in names_read()] == []


@pytest.mark.parametrize("base", BASES)
def test_a_misspelt_option_of_a_workload_is_refused(base: str) -> None:
    workload = BASES[base].get("workload", "training")
    options = {"kind": workload} if isinstance(workload, str) else workload
    with pytest.raises(SpecError, match=r"workload\.never_heard_of"):
        validate({"name": "x", **BASES[base], "workload": {**options, "never_heard_of": 1}})
