"""Synchronisation as a spec says it, what does not go with it, and the bytes and times that come of it."""

import importlib
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation
from testbed.plan.plan import Plan, make_plan
from testbed.report.terminal.plan import render_plan

SERVER = {"collective": "parameter_server", "synchronisation": "asynchronous", "fusion": "none"}


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


def synchronisation(value: object) -> Synchronisation:
    return validate({"name": "x", "synchronisation": value}).synchronisation


@pytest.mark.parametrize("value", ["every_iteration", "local_sgd", {"kind": "local_sgd", "every": 3}])
def test_it_survives_being_written_and_read(value: object) -> None:
    made = validate({"name": "x", "synchronisation": value})
    assert Experiment.model_validate(made.dump()) == made


@pytest.mark.parametrize("kind", SYNCHRONISATIONS.kinds())
def test_every_kind_says_how_often_and_has_a_function_in_the_worker(kind: str) -> None:
    made = SYNCHRONISATIONS.parse(kind)
    assert 1 <= made.num_exchanges(30) <= 30
    module, _, name = made.worker.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert (made.text is None) == made.gradients_in_every_iteration


def test_workers_agree_at_the_end_of_a_phase_as_well() -> None:
    local = synchronisation({"kind": "local_sgd", "every": 8})
    assert [local.num_exchanges(number) for number in (1, 8, 9, 30)] == [1, 1, 2, 4]
    assert synchronisation("every_iteration").num_exchanges(30) == 30


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"synchronisation": "never"},
            "synchronisation: 'never' is not a synchronisation; allowed: asynch",
        ),
        ({"synchronisation": {"kind": "local_sgd", "every": 0}}, "synchronisation.every: allowed: at least 1"),
        ({"synchronisation": {"every": 3}}, "synchronisation: `every_iteration` has no `every`"),
        ({"synchronisation": {"kind": "local_sgd", "h": 3}}, "synchronisation.h: unknown key; allowed: every"),
        ({"synchronisation": "asynchronous"}, "synchronisation: asynchronous needs servers of its own"),
        (SERVER | {"collective": {"kind": "parameter_server", "placement": "co_located"}}, "needs servers of its own"),
        (SERVER | {"collective": {"kind": "parameter_server", "pipelined": True}}, "leave collective.pipelined out"),
        (SERVER | {"fusion": "layers"}, "write `fusion: none`"),
        (SERVER | {"compression": "fp16"}, "compression fp16 is made for gradients"),
        ({"synchronisation": "local_sgd", "fusion": "priority"}, "fusion priority has nothing to order"),
        ({"synchronisation": "local_sgd", "workload": {"kind": "training", "verify_gradients": True}}, "no mean grad"),
        ({"synchronisation": "local_sgd", "workload": "allreduce"}, "workload allreduce has no parameters"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_path(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as raised:
        plan(**keys)
    assert words in str(raised.value)
    assert str(raised.value).startswith("synchronisation")


@pytest.mark.parametrize("servers", [1, 3])
def test_every_worker_pushes_and_pulls_each_shard_once(servers: int) -> None:
    made = plan(workers=4, **(SERVER | {"collective": {"kind": "parameter_server", "servers": servers}}))
    size_bytes = made.prediction.gradient_bytes
    assert len(made.traffic) == 2 * 4 * servers
    for (sender, _), wire_bytes in made.traffic.items():
        assert wire_bytes == pytest.approx(size_bytes / servers * 1514 / 1448, rel=1e-3), sender
    by_name = {direction.name: direction for direction in made.directions}
    assert by_name["w0 -> s0"].expected_bytes == pytest.approx(size_bytes * 1514 / 1448, rel=1e-3)
    assert by_name["ps0 -> s0"].expected_bytes == pytest.approx(4 / servers * size_bytes * 1514 / 1448, rel=1e-3)


def test_servers_links_are_what_many_workers_wait_for() -> None:
    size_s = plan(**SERVER).prediction.gradient_bytes * 8 / plan(**SERVER).prediction.goodput_bps
    many = SERVER | {"collective": {"kind": "parameter_server", "servers": 4}}
    assert plan(workers=4, **SERVER).prediction.predicted_s == pytest.approx(4 * size_s, rel=1e-3)
    assert plan(workers=4, **many).prediction.predicted_s > 2 * size_s
    for each in (SERVER, many):
        assert plan(workers=4, **each).prediction.bound_s == pytest.approx(2 * size_s), "of one that pushes by itself"


def test_a_plan_says_how_often() -> None:
    from io import StringIO

    from rich.console import Console

    for keys, words in (
        ({"synchronisation": {"kind": "local_sgd", "every": 5}}, "per averaging of parameters, every 5 iterations"),
        (SERVER, "push and pull at least"),
    ):
        said = StringIO()
        render_plan(plan(**keys), Console(file=said, width=120))
        assert words in said.getvalue()
