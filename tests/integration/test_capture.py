"""Packets of a run as pcapng, read back by scapy."""

import os
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from testbed.deployment.deployment import deploy
from testbed.experiment.experiment import validate
from testbed.hosts.base import ProcessSpec
from testbed.measure.capture import captured_links, capturing
from testbed.plan.plan import make_plan
from testbed.system.run_state import RunState, new_run_id
from tests.here import Done, invoke, summary_of

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(180)]


def run(output: Path, *more: str) -> Done:
    words = ["run", "experiments/quickstart.yaml", "--output", str(output), "--json"]
    short = ["workers=2", "workload.iterations=3", "workload.warmup=2", "workload.compute_only=1", "metrics.port=0"]
    short += ["workload.pace={forward: 50ms, backward: 100ms}"]
    words += [word for setting in short for word in ("--set", setting)]
    return invoke(*words, *more)


def test_a_captured_link_holds_the_streams_of_both_directions(tmp_path: Path) -> None:
    summary = summary_of(run(tmp_path, "--capture", "s0-w1", "--capture-bytes", "96"))
    (captured,) = summary["captures"]
    assert (captured["link"], captured["file"]) == ("w1-s0", "captures/w1-s0.pcapng")
    with PcapNgReader(str(Path(summary["record"], captured["file"]))) as reader:
        packets = list(reader)
    assert len(packets) == captured["num_packets"]
    assert max(len(bytes(packet)) for packet in packets) <= 96
    segments = [packet for packet in packets if TCP in packet]
    ends = {(packet[IP].src, packet[IP].dst) for packet in segments}
    assert len(ends) == 2
    assert ends == {end[::-1] for end in ends}
    # What the segments say they carry is at least what the schedule sends over the link.
    carried = sum(packet[IP].len for packet in segments)
    expected = sum(link["expected_bytes"] for link in summary["links"] if link["name"] == "w1-s0")
    assert carried + 14 * len(segments) > 0.9 * expected


def test_what_crossed_a_link_just_before_the_end_is_in_its_capture(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "t", "workers": 2}))
    state = RunState.create(new_run_id(), root=tmp_path)
    with deploy(plan, state, log_directory=tmp_path) as deployment:
        port = captured_links(plan.links, ["w0-s0"])
        payload = os.urandom(16).hex()
        receiver = plan.host_names()["w1"]
        send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'{payload}', ('{receiver}', 9))"
        sender = ProcessSpec(name="sender", argv=(sys.executable, "-S", "-c", send))
        with capturing(deployment.hosts, port, tmp_path / "captures", snap_bytes=256) as captures:
            assert deployment.hosts["w0"].start(sender).wait(10) == 0
    state.remove()
    (captured,) = captures.results
    with PcapNgReader(str(captured.path)) as reader:
        assert any(payload.encode() in bytes(packet) for packet in reader)
    assert captured.num_dropped == 0


def test_a_link_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = run(tmp_path, "--capture", "w9-s0")
    assert done.returncode == 2
    assert "there are w0-s0, w1-s0" in done.stderr
    assert list(tmp_path.iterdir()) == []
