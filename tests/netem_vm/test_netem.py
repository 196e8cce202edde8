"""The path that machines with netem take: run inside a virtual machine by `make test-netem-vm`.

Not collected by a plain pytest run (`norecursedirs`): the machine it needs is not the machine it is written on.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.calibrate import delays_of, measure_rate
from testbed.deployment.deployment import Deployment, deploy
from testbed.experiment.delay_backends.netem import Netem, NetemStage
from testbed.experiment.experiment import validate
from testbed.experiment.link import LinkSpec
from testbed.machine.doctor import missing_for_backend, require
from testbed.plan.plan import make_plan
from testbed.system.run_state import RunState, new_run_id

NUM_PACKETS = 4000


@contextmanager
def deployed(tmp_path: Path, link: dict[str, Any], **keys: Any) -> Iterator[Deployment]:
    plan = make_plan(validate({"name": "t", "workers": 2, "link": link, **keys}))
    require(plan)
    state = RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
    finally:
        state.remove()


def test_this_machine_has_netem() -> None:
    assert missing_for_backend("netem") == ""


def test_delay_reads_back_and_is_measured_in_both_directions(tmp_path: Path) -> None:
    # An emulated processor adds some 0.5 to 3 ms to everything, with a delay and without.
    with deployed(tmp_path, {"rate": "100mbit"}) as deployment:
        own_s = [delays_of(deployment, [direction])[0].delay_s for direction in deployment.plan.directions[:2]]
    with deployed(tmp_path, {"rate": "100mbit", "delay": "20ms"}) as deployment:
        assert deployment.differences() == []
        for direction, added_s in zip(deployment.plan.directions[:2], own_s, strict=True):
            assert delays_of(deployment, [direction])[0].delay_s - added_s == pytest.approx(0.020, abs=0.002)


def test_delay_does_not_cost_rate(tmp_path: Path) -> None:
    with deployed(tmp_path, {"rate": "10mbit", "delay": "5ms"}) as deployment:
        goodput_bps, congestion = measure_rate(deployment, deployment.plan.directions[0])
        assert goodput_bps == pytest.approx(10e6 * 1448 / 1514, rel=0.03)
        assert congestion == "cubic"


def test_a_changed_delay_is_noticed(tmp_path: Path) -> None:
    with deployed(tmp_path, {"rate": "100mbit", "delay": "20ms"}) as deployment:
        stage = deployment.plan.directions[0].delay_stage
        assert isinstance(stage, NetemStage)
        host = deployment.hosts[deployment.plan.directions[0].receiver.node]
        host.execute(
            f"tc qdisc change dev {stage.device} root handle 20: netem limit {stage.max_packets} delay 10ms".split()
        )
        assert any("netem delay is 0.01" in line for line in deployment.differences())


def test_loss_is_inside_its_binomial_interval(tmp_path: Path) -> None:
    loss = 0.05
    with deployed(tmp_path, {"rate": "100mbit", "loss": "5%"}, packet_mode="mtu") as deployment:
        assert deployment.differences() == []
        direction = deployment.plan.directions[0]
        with deployment.hosts[direction.receiver.node].entered():
            target = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with deployment.hosts[direction.sender.node].entered():
            source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with target, source:
            target.bind((direction.receiver.address, 0))
            target.settimeout(2.0)
            num_received = 0
            for _ in range(NUM_PACKETS // 50):
                for _ in range(50):
                    source.sendto(b"x" * 64, target.getsockname())
                try:
                    while num_received < NUM_PACKETS:
                        target.settimeout(0.3)
                        target.recv(128)
                        num_received += 1
                except TimeoutError:
                    continue
        expected = NUM_PACKETS * (1 - loss)
        deviation = (NUM_PACKETS * loss * (1 - loss)) ** 0.5
        assert abs(num_received - expected) < 4 * deviation


def test_everything_drawn_reads_back_and_changes_in_place(tmp_path: Path) -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": "0.5%", "bad_to_good": "25%", "loss_in_bad": "90%"}
    link = {"delay": "20ms", "jitter": "2ms", "loss": bursts, "duplicate": "1%", "reorder": "2%"}
    with deployed(tmp_path, link, packet_mode="mtu") as deployment:
        assert deployment.differences() == []
        direction = deployment.plan.directions[0]
        stage = direction.delay_stage
        assert isinstance(stage, NetemStage)
        calmer = LinkSpec.model_validate({"delay": "10ms", "jitter": {"deviation": "1ms"}, "loss": "1%"})
        changed = Netem().stage(calmer, interface=stage.interface, index=0, seed=1).following(stage)
        deployment.change(replace(direction, requested=calmer, delay_stage=changed), down=False)
        assert deployment.differences() == []
