"""Links of a real network that change while it works: by the schedule, by a trace, manually from another process."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from testbed.calibration.calibrate import flow_of
from testbed.calibration.streams import streaming
from testbed.deployment.deployment import Deployment, deploy
from testbed.deployment.link_service import LinkService
from testbed.deployment.live_links import LinkChangeEvent, LiveLinks
from testbed.errors import MissingRequirementError
from testbed.experiment.changes import LinkChange
from testbed.experiment.experiment import validate
from testbed.experiment.link import BackendName, parse_override
from testbed.machine.doctor import plan_here
from testbed.plan.direction import Direction
from testbed.runner.link_client import SOCKET_NAME, change_links, show_links
from testbed.system.run_state import RunState, new_run_id
from tests.backends import HERE
from tests.measuring import standing

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(180)]


@contextmanager
def live(tmp_path: Path, **keys: Any) -> Iterator[tuple[LiveLinks, Deployment, str, list[LinkChangeEvent]]]:
    plan = plan_here(validate({"name": "t", "workers": 2, **keys}))
    state = RunState.create(new_run_id())
    events: list[LinkChangeEvent] = []
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment, closing(LiveLinks(deployment)) as links:
            links.accept(events.extend)
            with closing(LinkService(state.directory / SOCKET_NAME, links, name="t")):
                yield links, deployment, state.run_id, events
    finally:
        state.remove()


def manual_change(link: str, *, down: bool | None = None, **settings: str) -> LinkChange:
    return LinkChange(
        at_s=0.0, link=link, settings=parse_override(settings), down=down, source="manual", key="link set"
    )


@pytest.mark.parametrize("backend", HERE)
def test_what_is_requested_follows_every_change_and_the_kernel_agrees(tmp_path: Path, backend: BackendName) -> None:
    link = {"delay": "1ms", "backend": backend}
    with live(tmp_path, link=link, packet_mode="mtu") as (links, deployment, run_id, _):
        links.change(manual_change("w1-s0", rate="20mbit", queue="300kB"))
        links.change(manual_change("w1->s0", delay="3ms", loss="1%"))
        links.change(manual_change("s0->w1", down=True))
        assert deployment.differences() == []
        rows = {(row["from"], row["to"]): row for row in show_links(run_id)}
        assert rows["w1", "s0"]["requested"]["rate"] == "20mbit"
        assert (rows["w1", "s0"]["requested"]["delay"], rows["s0", "w1"]["requested"]["delay"]) == ("3ms", "1ms")
        assert (rows["w1", "s0"]["down"], rows["s0", "w1"]["down"]) == (False, True)
        links.change(manual_change("*", down=False))
        assert deployment.differences() == []


def measured_bps(deployment: Deployment, direction: Direction) -> float:
    """What the line has carried over a moment."""
    begun_s, begun = time.monotonic(), deployment.line_counters()[direction.hop].num_bytes
    time.sleep(0.4)
    sent = deployment.line_counters()[direction.hop].num_bytes - begun
    return 8 * sent / (time.monotonic() - begun_s)


def arrives(taken: socket.socket) -> bool:
    """Whether anything of a stream does. After each loss TCP waits twice as long before it tries again."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if num_arrived(taken, 0.1):
            return True
    return False


@contextmanager
def reading(taken: socket.socket) -> Iterator[None]:
    """Reads a stream all the while. Where nobody does between two measurements, and what says that there is room again
    is lost, TCP asks ever more rarely."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            num_arrived(taken, 0.05)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def num_arrived(taken: socket.socket, duration_s: float) -> int:
    """Bytes of a stream that arrive meanwhile."""
    deadline_s, count = time.monotonic() + duration_s, 0
    while time.monotonic() < deadline_s:
        with suppress(BlockingIOError):
            count += len(taken.recv(1 << 20, socket.MSG_DONTWAIT))
        time.sleep(0.001)
    return count


@pytest.mark.parametrize("backend", HERE)
def test_a_stream_follows_the_rate_and_stops_while_its_link_is_down(tmp_path: Path, backend: BackendName) -> None:
    with live(tmp_path, link={"delay": "1ms", "backend": backend}) as (links, deployment, _, _events):
        direction = deployment.plan.directions[0]
        with streaming(deployment, [flow_of(direction)], timeout_s=60) as (stream,):

            def error() -> float:
                links.change(manual_change("w0-s0", rate="20mbit"))
                time.sleep(0.3)
                return measured_bps(deployment, direction) / 20e6 - 1

            with reading(stream.taken):
                assert abs(standing(error, lambda found: abs(found) < 0.1)) < 0.1
            links.change(manual_change("w0->s0", down=True))
            num_arrived(stream.taken, 0.2)
            assert num_arrived(stream.taken, 0.3) == 0
            links.change(manual_change("w0->s0", down=False))
            assert arrives(stream.taken)
            assert deployment.differences() == []


@pytest.mark.parametrize("backend", ["nfqueue", "tap"])  # netem's seed needs Linux 6.6
def test_which_packets_are_lost_does_not_depend_on_what_was_sent_before_the_first_iteration(
    tmp_path: Path, backend: BackendName
) -> None:
    def lost(num_before: int) -> set[int]:
        loss = {"kind": "gilbert_elliott", "good_to_bad": 0.02, "bad_to_good": 0.3}
        link = {"rate": "1gbit", "delay": "1ms", "loss": loss, "backend": backend}
        with live(tmp_path, link=link, packet_mode="mtu") as (links, deployment, _, _events), ExitStack() as stack:
            direction = deployment.plan.directions[0]
            with deployment.hosts[direction.receiver.node].entered():
                target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with deployment.hosts[direction.sender.node].entered():
                source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            target.bind((direction.receiver.address, 0))
            target.settimeout(0.5)
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            source.connect(target.getsockname())

            def arrived(count: int) -> set[int]:
                for number in range(count):
                    source.send(number.to_bytes(4))
                    time.sleep(0.2e-3)  # the delay line holds few packets of a link this fast
                found = set()
                with suppress(TimeoutError):
                    while True:
                        found.add(int.from_bytes(target.recv(64)))
                return found

            arrived(num_before)
            links.begin(iter(()))
            links.change(manual_change("w0->s0", rate="900mbit"))  # draws go on
            return set(range(300)) - arrived(300)

    first = lost(1)
    assert first
    assert lost(123) == first


def test_a_change_behind_the_testbeds_back_is_still_noticed(tmp_path: Path) -> None:
    with live(tmp_path) as (links, deployment, _, _events):
        links.change(manual_change("w1-s0", rate="20mbit"))
        tc = "tc class change dev w1-eth0 parent 1: classid 1:1 htb rate 30mbit ceil 30mbit quantum 60000"
        deployment.hosts["w1"].execute(tc.split())
        assert any("htb rate" in line for line in deployment.differences())


def test_a_link_that_has_gone_ends_the_run(tmp_path: Path) -> None:
    with live(tmp_path) as (links, deployment, run_id, _):
        deployment.hosts["w1"].execute(["tc", "qdisc", "del", "dev", "w1-eth0", "root"])
        with pytest.raises(MissingRequirementError, match="w1 -> s0 cannot be changed"):
            change_links(run_id, "w1->s0", {"rate": "20mbit"})
        with pytest.raises(MissingRequirementError):
            links.check()


def test_a_change_takes_milliseconds(tmp_path: Path) -> None:
    with live(tmp_path) as (_, _deployment, run_id, events):
        took_s = []
        for rate in ("20mbit", "50mbit", "100mbit"):
            requested_s = time.monotonic()
            change_links(run_id, "w1->s0", {"rate": rate})
            took_s.append(events[-1].at_s - requested_s)
        assert min(took_s) < 0.2


SPEC = """
name: changing
workers: 2
workload: {kind: training, iterations: 12, warmup: 2, compute_only: 1}
metrics: {port: 0}
changes:
  - {at: 200ms, link: w0-s0, rate: 60mbit}
  - {link: 's0->w0', trace: TRACE}
  - {at: 1h, link: w0-s0, rate: 10mbit}
"""


@pytest.mark.slow
def test_a_run_is_changed_from_another_process_and_its_record_says_so(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("time_s,rate\n0.3,40mbit\n0.6,70mbit\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("TRACE", str(trace)))
    testbed = [sys.executable, "-m", "testbed"]
    run = subprocess.Popen(
        [*testbed, "run", str(spec), "--output", str(tmp_path / "records"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run_id = wait_for_workers(tmp_path / "records", run)
    done = subprocess.run(
        [*testbed, "link", "set", run_id, "w1-s0", "--rate", "50mbit", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    changed = json.loads(done.stdout)["changed"]
    assert [(each["from"], each["before"], each["after"]) for each in changed] == [
        ("w1", "100mbit", "50mbit"),
        ("s0", "100mbit", "50mbit"),
    ]
    output, errors = run.communicate(timeout=120)
    assert run.returncode in {0, 4}, errors
    summary = json.loads(output)
    assert not any("settings differ" in reason for reason in summary["reasons"])
    assert any("changed manually (w1-s0)" in note for note in summary["notes"])
    assert summary["num_changes_not_reached"] == 1
    reported = {(change["source"], change["links"], change["after"]) for change in summary["changes"]}
    assert reported == {
        ("schedule", "w0 ↔ s0", "60mbit"),
        ("trace", "s0 → w0", "70mbit"),
        ("manual", "w1 ↔ s0", "50mbit"),
    }
    record = Path(summary["record"])
    rows = pl.read_parquet(record / "changes.parquet")
    assert rows.filter(pl.col("source") == "trace")["after"].to_list() == ["40mbit", "70mbit"]
    # The sampler saw the same, and nothing was dropped by it.
    w1 = pl.read_parquet(record / "links.parquet").filter((pl.col("link") == "w1-s0") & (pl.col("node") == "w1"))
    assert w1["rate_bps"].unique().sort().to_list() == [50e6, 100e6]
    assert {link["drops"] for link in summary["links"]} == {0}
    assert "w1 ↔ s0: rate 100mbit → 50mbit, manually" in (record / "report.html").read_text()


def wait_for_workers(records: Path, run: "subprocess.Popen[str]") -> str:
    """The run's id, once its links may be changed."""
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        assert run.poll() is None, run.communicate()[1]
        for log in records.glob("*/logs/w1.log"):
            return "-".join(log.parents[1].name.split("-")[-2:])
        time.sleep(0.05)
    raise AssertionError("the run did not begin")
